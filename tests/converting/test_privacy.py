"""Differential privacy with Opacus: a converted network is valid, its scalars have per-sample gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from skipinit.converting.convert import convert
from skipinit.data.images import load, standardize
from support.convert_models import CifarResNet, scalars

pytestmark = pytest.mark.filterwarnings("ignore")  # Opacus warns of its own random numbers and hooks.


def test_one_private_epoch_moves_the_scalars():
    opacus = pytest.importorskip("opacus")
    from opacus.validators import ModuleValidator

    digits = load("digits")
    images, labels = standardize(digits.train_images[:256]), digits.train_labels[:256]
    normalized = CifarResNet(1, 8)
    assert ModuleValidator.validate(normalized, strict=False)
    model = convert(normalized, images[:8], seed=0).model
    assert ModuleValidator.validate(model, strict=False) == []

    alphas = list(scalars(model).values())
    assert_per_sample_gradients(model, alphas, images[:4], labels[:4])
    torch.manual_seed(0)
    private, optimizer, loader = opacus.PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(images, labels), batch_size=32),
        noise_multiplier=0.5,
        max_grad_norm=1.0,
    )
    for batch, targets in loader:
        optimizer.zero_grad()
        F.cross_entropy(private(batch), targets).backward()
        assert all(p.grad_sample.shape == (len(batch),) for p in alphas)
        optimizer.step()
    assert all(p.item() != 0 for p in alphas)


def assert_per_sample_gradients(model, alphas, images, labels):
    """Opacus's gradients of single examples are those of backward passes over single examples."""
    from opacus import GradSampleModule

    wanted = []
    for image, label in zip(images, labels, strict=True):
        loss = F.cross_entropy(model(image[None]), label[None])
        wanted.append(torch.stack(torch.autograd.grad(loss, alphas)))
    hooked = GradSampleModule(model)
    F.cross_entropy(hooked(images), labels).backward()
    found = torch.stack([p.grad_sample for p in alphas], dim=1)
    torch.testing.assert_close(found, torch.stack(wanted), rtol=1e-4, atol=1e-6)
    hooked.to_standard_module().zero_grad()
    for value in model.parameters():
        value.grad_sample = None
