"""What the paper compares: a method is a scheme with the options that one column of a table gives it."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import ModelConfig


@dataclass(frozen=True)
class Method:
    """One column of a table or one curve of a figure."""

    name: str
    label: str
    """As the paper writes it."""
    scheme: str
    alpha: float | str | None = None
    l2: bool = True
    """Whether it is trained with L2 regularization."""
    biases: bool | None = None
    scalar_bias: bool | None = None
    fixup_components: tuple[int, ...] | None = None

    def model(self, network: str) -> ModelConfig:
        """The network of that name, built this way."""
        return ModelConfig(
            network,
            scheme=self.scheme,
            alpha=self.alpha,
            biases=self.biases,
            scalar_bias=self.scalar_bias,
            fixup_components=self.fixup_components,
        )


_ALL = (
    Method("batchnorm", "Batch normalization", "batchnorm"),
    Method("none", "No normalization", "none"),
    Method("skipinit", "SkipInit (α = 0)", "skipinit"),
    Method("skipinit alpha=1/sqrt(d)", "SkipInit (α = 1/√d)", "skipinit", alpha="1/sqrt(d)"),
    Method("skipinit alpha=1", "SkipInit (α = 1)", "skipinit", alpha=1.0),
    Method("skipinit without L2", "SkipInit without L2 (α = 0)", "skipinit", l2=False),
    Method("skipinit without biases", "SkipInit without biases", "skipinit", biases=False),
    Method("regularized-skipinit", "Regularized SkipInit", "regularized-skipinit"),
    Method(
        "regularized-skipinit scalar bias", "Regularized SkipInit + Scalar Bias", "regularized-skipinit",
        scalar_bias=True,
    ),
    Method("divide-sqrt2", "Divide residual block by √2", "divide-sqrt2"),
    Method(
        "batchnorm-divide-sqrt2", "Divide batch-normalized residual block by √2", "batchnorm-divide-sqrt2"
    ),
    Method("batchnorm-block-end", "Adding BatchNorm at end of residual block", "batchnorm-block-end"),
    Method("batchnorm-final-only", "Including only the final BatchNorm layer", "batchnorm-final-only"),
    Method("fixup", "Fixup", "fixup"),
    Method("fixup-dropout", "Fixup + Dropout", "fixup-dropout"),
    Method("fixup component 1", "Fixup, component 1 alone", "fixup", fixup_components=(1,)),
    Method("fixup component 2", "Fixup, component 2 alone", "fixup", fixup_components=(2,)),
)  # fmt: skip

METHODS = {method.name: method for method in _ALL}
