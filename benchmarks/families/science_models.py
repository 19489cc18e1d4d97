"""Published models for graphs, molecules, tables, flows, operators, control and other sciences."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from case import Adds, Case, count_adds, stub_torchvision
from torch import Tensor, nn

from skipinit.probing.tensors import tensors_in

LIBRARIES = (
    "torch_geometric", "torchmd-net", "mace-torch", "e3nn", "egnn-pytorch", "se3-transformer-pytorch",
    "equiformer-pytorch", "neuraloperator", "fair-esm", "rtdl_revisiting_models", "rtdl_num_embeddings",
    "tabm", "pytorch-tabnet", "tab-transformer-pytorch", "deepctr-torch", "nflows", "zuko", "normflows",
    "FrEIA", "memcnn", "stable-baselines3", "sb3-contrib", "torchrl", "torchdiffeq", "torchdeq", "gpytorch",
    "ncps", "pykan", "monotonenorm", "soft-moe-pytorch", "st-moe-pytorch", "hypnettorch",
    "sentence-transformers", "transformers", "pytorch-metric-learning",
)  # fmt: skip
# How many residual adds the forward of a module has, read from its source; a text names the attribute that
# says how many.
BLOCKS: dict[str, Adds] = {
    # torch_geometric. GPSConv adds x to both of its streams and then an MLP; their sum has no skip. DimeNet's
    # interactions add two layers of x, of which one is a projection, and then x. ViSNet adds to nodes and
    # vectors, and in all but the last layer to edges; the vectors of the first layer are zeros. GCNII adds
    # its first features to each layer but the first, which they are.
    "DeepGCNLayer": lambda m: int(m.block != "plain" and m.norm is not None), "GPSConv": 3,
    "InteractionBlock": 1, "InteractionPPBlock": 2, "DimeNetBlock": 2, "ResidualLayer": 1,
    "ViSNetBlock": lambda m: 3 * len(m.vis_mp_layers) - 2, "GATConv": lambda m: int(m.res is not None),
    "GroupAddRev": "num_groups", "GraphUNet": "depth", "SGModule": lambda m: len(m.attns),
    "GraphModule": lambda m: len(getattr(m, "convs", ())),
    # Molecules of other libraries. TorchMD's graph network adds its layers, InteractionBlocks as SchNet's.
    "TorchMD_ET": lambda m: 2 * len(m.attention_layers) - 1, "EquivariantProductBasisBlock": "use_sc",
    "EGNN": 2, "AttentionBlockSE3": 2, "FeedForwardBlockSE3": 2,
    # Sequences, tables.
    "TransformerLayer": 2, "ResNet": lambda m: len(getattr(m, "blocks", ())),
    "FTTransformerBackbone": lambda m: 2 * len(m.blocks), "GLU_Block": lambda m: m.n_glu - m.first,
    "CrossNet": "layer_num", "CrossNetMix": "layer_num", "PiecewiseLinearEmbeddings": 1,
    # Flows. Each coupling of NICE adds to both halves.
    "ResidualBlock": 1, "ConvResidualBlock": 1, "MaskedResidualBlock": 1, "Residual": 1,
    "iResBlock": 1, "NICECouplingBlock": 2, "AdditiveCoupling": 2, "IResNetLayer": 1,
    # Operators: with a linear skip the spectral part is a sum of two layers of x.
    "FNOBlocks": lambda m: m.n_layers * 2,
    # Others.
    "GPT2Block": 2, "BertLayer": 2, "SparseMoEBlock": 3, "PreNormResidual": 1, "Plus": 1,
}  # fmt: skip
NODES, EDGES, WIDTH = 40, 120, 16


class Plus(nn.Module):
    """x + f(x)"""

    def __init__(self, *branch: nn.Module) -> None:
        super().__init__()
        self.branch = nn.Sequential(*branch)

    def forward(self, x: Tensor) -> Tensor:
        """The branch may come from a library."""
        added: Tensor = x + self.branch(x)
        return added


class Called(nn.Module):
    """A model of a library, called in its own way; two rows of outputs."""

    def __init__(self, model: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, *args: Any) -> Tensor:
        """The first tensor that it returns."""
        rows = next(tensors_in(self.call(self.model, *args))).reshape(2, -1)
        return rows if rows.shape[1] > 1 else torch.cat([rows, -rows], 1)


def _case(name: str, build: Callable[[], nn.Module], inputs: Any, **options: Any) -> Case:
    """A case whose adds are counted by class; `adds` gives those of functions, `call` how it is called."""
    call, adds = options.pop("call", lambda model, *args: model(*args)), options.pop("adds", None)

    def wanted(model: nn.Module) -> int:
        return _count(model) if adds is None else int(adds)

    return Case(name, lambda: Called(build(), call), list(inputs), wanted, **options)  # A tuple is a shape.


def _count(model: nn.Module) -> int:
    return count_adds(model, BLOCKS)


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _whole(high: int, *shape: int, low: int = 0) -> Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(0))


def cases() -> Iterator[Case]:
    """All of them."""
    stub_torchvision()
    yield from chain(_graphs(), _molecules(), _tables(), _flows(), _operators(), _control(), _others())


class Layers(nn.Module):
    """An encoder, layers of a graph network, and a head."""

    def __init__(self, layers: list[nn.Module], forward: Callable[..., Tensor], normed: bool = False) -> None:
        super().__init__()
        self.encoder, self.edges = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.layers, self.head = nn.ModuleList(layers), nn.Linear(WIDTH, 5)
        self.norms = nn.ModuleList(nn.BatchNorm1d(WIDTH) if normed else nn.Identity() for _ in layers)
        self.step = forward

    def forward(self, x: Tensor, links: Tensor, edges: Tensor) -> Tensor:
        """As in the examples of PyTorch Geometric."""
        x = first = self.encoder(x)
        edges = self.edges(edges)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = self.step(layer, norm, x, first, links, edges)
        scores: Tensor = self.head(x)
        return scores


def _graphs() -> Iterator[Case]:
    from torch_geometric import nn as graphs
    from torch_geometric.data import Batch, Data

    x, links, edges = _random(NODES, WIDTH), _whole(NODES, 2, EDGES), _random(EDGES, WIDTH)
    batch, given = torch.arange(4).repeat_interleave(10), (x, links, edges)

    def deep(block: str, norm: type[nn.Module]) -> nn.Module:
        kind = "layer" if norm is nn.LayerNorm else "batch"
        layers = [
            graphs.DeepGCNLayer(
                graphs.GENConv(WIDTH, WIDTH, aggr="softmax", learn_t=True, norm=kind),
                norm(WIDTH), nn.ReLU(inplace=True), block, dropout=0.1,
            )
            for _ in range(3)
        ]  # fmt: skip
        return Layers([graphs.GENConv(WIDTH, WIDTH), *layers], lambda f, _, x, __, links, e: f(x, links, e))

    def gine() -> nn.Module:
        wide = [nn.Linear(WIDTH, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, WIDTH)]
        convs = [graphs.GINEConv(nn.Sequential(*wide), edge_dim=WIDTH, train_eps=True) for _ in range(3)]
        return Layers(convs, lambda f, norm, x, _, links, e: norm(f(x, links, e)).relu() + x, normed=True)

    def pna() -> nn.Module:
        options = {"deg": torch.bincount(torch.bincount(links[1], minlength=NODES)), "edge_dim": WIDTH}
        names = ["mean", "max", "std"], ["identity", "amplification"]
        convs = [graphs.PNAConv(WIDTH, WIDTH, *names, towers=4, **options) for _ in range(3)]
        return Layers(convs, lambda f, norm, x, _, links, e: norm(f(x, links, e)).relu() + x, normed=True)

    def gps() -> nn.Module:
        local = [graphs.GINEConv(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())) for _ in range(3)]
        convs = [graphs.GPSConv(WIDTH, conv, heads=4, attn_type="multihead") for conv in local]
        return Layers(convs, lambda f, _, x, __, links, edges: f(x, links, batch, edge_attr=edges))

    def gcn2() -> nn.Module:
        convs = [graphs.GCN2Conv(WIDTH, 0.1, 0.5, 1 + place) for place in range(4)]
        return Layers(convs, lambda f, _, x, first, links, __: f(x, first, links).relu())

    def of_data(model: nn.Module, data: Any) -> Any:
        return model(data.x, data.edge_index, data.edge_attr)

    pieces = [Data(x=part, edge_index=_whole(10, 2, 30), edge_attr=edges[:30]) for part in x.split(10)]
    yield _case("DeeperGCN, res+", lambda: deep("res+", nn.LayerNorm), given)
    yield _case("DeeperGCN, res", lambda: deep("res", nn.BatchNorm1d), given)
    yield _case("DeeperGCN, plain", lambda: deep("plain", nn.BatchNorm1d), given)
    yield _case("GINE", gine, given, adds=3)
    yield _case("GINE of a Batch", gine, (Batch.from_data_list(pieces),), adds=3, call=of_data)
    yield _case("PNA", pna, given, adds=3)
    yield _case("GPS", gps, given)
    yield _case("GCNII", gcn2, given, adds=3)
    gin = graphs.GIN, {"norm": "batch_norm", "jk": "cat"}
    yield _case("GIN, jumping knowledge", lambda: gin[0](WIDTH, WIDTH, 3, 5, **gin[1]), (x, links))
    yield _case(
        "GAT, residual", lambda: graphs.GAT(WIDTH, 16, 3, 5, norm="batch_norm", residual=True), (x, links)
    )
    yield _case("GraphUNet", lambda: graphs.GraphUNet(WIDTH, 16, 5, depth=2, sum_res=True), (x, links))
    yield _case("SGFormer", lambda: graphs.SGFormer(WIDTH, 16, 5), (x, links, batch))
    yield _case("GroupAddRev", lambda: graphs.GroupAddRev(graphs.GCNConv(8, 8), num_groups=2), (x, links))


def near(x: Tensor, r: float, batch: Tensor, *_: Any, **__: Any) -> Tensor:
    """In place of `radius_graph`, whose compiled package has no wheel here."""
    found = (torch.cdist(x, x) < r) & (batch[:, None] == batch) & ~torch.eye(len(x), dtype=torch.bool)
    return found.nonzero().T.flip(0).contiguous()


def _triplets(links: Tensor, num_nodes: int) -> tuple[Tensor, ...]:
    """In place of DimeNet's, which needs another compiled package: edges k to j and j to i."""
    j, i = links
    into, out = ((i[:, None] == j) & (j[:, None] != i)).nonzero().T
    return i, j, i[out], j[out], j[into], into, out


def _molecules() -> Iterator[Case]:
    import numpy
    from e3nn import o3
    from egnn_pytorch import EGNN
    from equiformer_pytorch import Equiformer
    from mace import modules as mace
    from se3_transformer_pytorch import SE3Transformer
    from torch_geometric.nn.models import dimenet, schnet, visnet
    from torchmdnet.models.model import create_model

    for module in (dimenet, schnet, visnet):
        module.radius_graph = near
    dimenet.triplets = _triplets
    places, batch = 2 * _random(12, 3), torch.arange(2).repeat_interleave(6)
    atoms = _whole(10, 12, low=1), places, batch
    basis = {"num_spherical": 3, "num_radial": 4, "cutoff": 10.0}
    wide = {"int_emb_size": 8, "basis_emb_size": 4, "out_emb_channels": 16} | basis
    small = {"num_layers": 2, "hidden_channels": 32, "num_rbf": 8, "num_heads": 4, "cutoff": 10.0}
    yield _case("SchNet", lambda: schnet.SchNet(16, 16, 3, 10), atoms)
    yield _case("DimeNet++", lambda: dimenet.DimeNetPlusPlus(16, 4, 2, **wide), atoms, adds=2 * 5)
    yield _case("DimeNet", lambda: dimenet.DimeNet(16, 4, 2, num_bilinear=4, **basis), atoms, adds=2 * 5)
    yield _case("ViSNet, forces", lambda: visnet.ViSNet(derivative=True, **small), atoms)
    options = {
        "embedding_dimension": 16, "num_layers": 2, "num_rbf": 8, "rbf_type": "expnorm", "max_z": 20,
        "trainable_rbf": False, "activation": "silu", "cutoff_lower": 0.0, "cutoff_upper": 10.0,
        "max_num_neighbors": 32, "aggr": "add", "neighbor_embedding": True, "attn_activation": "silu",
        "num_heads": 4, "derivative": True, "distance_influence": "both", "atom_filter": -1, "precision": 32,
        "prior_model": None, "output_model": "Scalar", "reduce_op": "add",
    }  # fmt: skip
    for kind in ("graph-network", "equivariant-transformer"):
        chosen = options | {"model": kind}
        yield _case(f"TorchMD {kind}, forces", lambda chosen=chosen: create_model(chosen), atoms)

    def energies() -> nn.Module:
        kinds = mace.interaction_classes
        return mace.ScaleShiftMACE(
            atomic_inter_scale=1.0, atomic_inter_shift=0.0, r_max=5.0, num_bessel=4, num_polynomial_cutoff=5,
            max_ell=1, interaction_cls=kinds["RealAgnosticResidualInteractionBlock"],
            interaction_cls_first=kinds["RealAgnosticInteractionBlock"], num_interactions=2, num_elements=3,
            hidden_irreps=o3.Irreps("8x0e+8x1o"), MLP_irreps=o3.Irreps("8x0e"),
            atomic_energies=numpy.zeros(3), avg_num_neighbors=3.0,
            atomic_numbers=[1, 6, 8], correlation=2, gate=nn.functional.silu,
        )  # fmt: skip

    links = near(places, 5.0, batch)
    crystal = {
        "positions": places, "node_attrs": torch.eye(3)[torch.arange(12) % 3], "edge_index": links,
        "shifts": torch.zeros(links.shape[1], 3), "unit_shifts": torch.zeros(links.shape[1], 3),
        "cell": torch.zeros(6, 3), "batch": batch, "ptr": torch.tensor([0, 6, 12]),
        "head": torch.zeros(2, dtype=torch.long),
    }  # fmt: skip

    def forces(model: nn.Module, data: dict[str, Tensor]) -> Tensor:
        found: Tensor = model(dict(data), training=model.training)["forces"]
        return found

    yield _case("MACE, forces", energies, (crystal,), call=forces, adds=1)
    features, points = _random(2, 8, 8), _random(2, 8, 3, seed=1)
    masked = torch.ones(2, 8, dtype=torch.bool)

    def layers(model: nn.Sequential, h: Tensor, x: Tensor) -> Tensor:
        for layer in model:
            h, x = layer(h, x)
        return torch.cat([h, x], -1)

    yield _case(
        "EGNN",
        lambda: nn.Sequential(EGNN(dim=8, norm_feats=True), EGNN(dim=8)),
        (features, points),
        call=layers,
    )
    sizes = {"heads": 2, "depth": 1, "dim_head": 4, "num_degrees": 2, "valid_radius": 10, "num_neighbors": 3}
    yield _case(
        "SE3 transformer", lambda: SE3Transformer(dim=8, **sizes), (features, points),
        call=lambda m, h, x: m(h, x, masked, return_type=0),
    )  # fmt: skip
    narrow = {"dim": (8, 4), "dim_head": (4, 4), "heads": (2, 2), "num_degrees": 2, "depth": 2}
    yield _case(
        "Equiformer",
        lambda: Equiformer(num_tokens=5, num_linear_attn_heads=0, reduce_dim_out=False, **narrow),
        (_whole(5, 2, 6), points[:, :6]), call=lambda m, h, x: m(h, x, masked[:, :6]).type0, adds=2 * 4,
    )  # fmt: skip


def _tables() -> Iterator[Case]:
    import deepctr_torch.models as recommenders
    import rtdl_num_embeddings as numbers
    import rtdl_revisiting_models as rtdl
    import tabm
    from deepctr_torch.inputs import DenseFeat, SparseFeat
    from pytorch_tabnet.tab_network import TabNet
    from tab_transformer_pytorch import TabTransformer

    x, kinds = _random(8, 10), _whole(3, 8, 2)
    size = {"d_out": 4, "n_blocks": 2, "d_block": 16}
    residual = size | {"d_hidden": 32, "d_hidden_multiplier": None, "dropout1": 0.1, "dropout2": 0.0}
    attention = size | {
        "attention_n_heads": 4, "attention_dropout": 0.1, "ffn_d_hidden": None,
        "ffn_d_hidden_multiplier": 4 / 3, "ffn_dropout": 0.1, "residual_dropout": 0.0,
    }  # fmt: skip
    bins = numbers.compute_bins(_random(100, 10, seed=1), n_bins=8)

    def embedded() -> nn.Module:
        embedding = numbers.PiecewiseLinearEmbeddings(bins, 8, activation=True, version="B")
        return nn.Sequential(embedding, nn.Flatten(), rtdl.ResNet(d_in=80, **residual))

    yield _case("rtdl ResNet", lambda: rtdl.ResNet(d_in=10, **residual), (x,))
    yield _case("rtdl ResNet, piecewise linear embeddings", embedded, (x,))
    yield _case(
        "FT-Transformer",
        lambda: rtdl.FTTransformer(n_cont_features=10, cat_cardinalities=[3, 3], **attention),
        (x, kinds),
    )
    yield _case(
        "TabTransformer",
        lambda: TabTransformer(
            categories=(3, 3), num_continuous=10, dim=16, depth=2, heads=4, dim_out=4, mlp_act=nn.ReLU()
        ),
        (kinds, x), adds=4,
    )  # fmt: skip
    yield _case("TabM", lambda: tabm.TabM.make(n_num_features=10, k=4, **size), (x,))
    steps = {"n_d": 8, "n_a": 8, "n_steps": 3, "n_independent": 2, "n_shared": 2, "virtual_batch_size": 8}
    yield _case("TabNet", lambda: TabNet(10, 4, group_attention_matrix=torch.eye(10), **steps), (x,))
    columns = [SparseFeat(f"s{i}", 5, embedding_dim=4) for i in range(4)] + [
        DenseFeat(f"d{i}", 1) for i in range(3)
    ]
    rows = torch.cat([_whole(5, 8, 4).float(), _random(8, 3)], 1)
    options = {"task": "binary", "device": "cpu", "dnn_hidden_units": (16, 16), "dnn_use_bn": True}
    for name, kind, more, adds in (
        # The weights of all crosses are slices of one parameter, or share a gate: they look like one block.
        ("DCN", "DCN", {"cross_num": 3}, 3),
        ("DCN-V2", "DCN", {"cross_num": 3, "cross_parameterization": "matrix"}, 3),
        ("DCN-Mix", "DCNMix", {"low_rank": 4, "num_experts": 2}, 2),
    ):

        def build(kind: str = kind, more: dict[str, Any] = more) -> nn.Module:
            model: nn.Module = getattr(recommenders, kind)(columns, columns, **options, **more)
            return model

        yield _case(name, build, (rows,), doubtful=adds)
    # A linear model of the sparse features, then two deep ones are added to it.
    yield _case(
        "xDeepFM",
        lambda: recommenders.xDeepFM(columns, columns, cin_layer_size=(8, 8), **options),
        (rows,),
        adds=2,
    )


def _flows() -> Iterator[Case]:
    import FrEIA.framework
    import FrEIA.modules
    import memcnn
    import normflows
    import zuko
    from nflows import distributions, flows, transforms
    from nflows.nn import nets
    from nflows.transforms.made import MADE

    x = _random(8, 10)

    def likelihood(model: nn.Module, x: Tensor) -> Tensor:
        found: Tensor = model.log_prob(x)
        return found

    def residual(a: int, b: int) -> nn.Module:
        net: nn.Module = nets.ResidualNet(a, b, hidden_features=16, num_blocks=2, use_batch_norm=True)
        return net

    def spline() -> nn.Module:
        kind = transforms.PiecewiseRationalQuadraticCouplingTransform
        masks = torch.arange(10) % 2, 1 - torch.arange(10) % 2
        steps = [kind(mask, residual, num_bins=4, tails="linear", tail_bound=3.0) for mask in masks]
        return flows.Flow(transforms.CompositeTransform(steps), distributions.StandardNormal([10]))

    yield _case("nflows ResidualNet", lambda: residual(10, 4), (x,))
    yield _case("nflows MADE", lambda: MADE(10, 16, num_blocks=2, use_batch_norm=True), (x,))
    yield _case("nflows spline coupling", spline, (x,), call=likelihood)
    masked = torch.ones(10, 10).tril() > 0
    yield _case(
        "zuko MaskedMLP", lambda: zuko.nn.MaskedMLP(masked, (16, 16, 16), residual=True), (x,), adds=3
    )
    yield _case(
        "zuko spline flow",
        lambda: zuko.flows.NSF(10, transforms=2, hidden_features=(16, 16), residual=True), (x,),
        call=lambda flow, x: flow().log_prob(x), adds=2 * 2,
    )  # fmt: skip

    def contractions() -> nn.Module:
        steps = list[nn.Module]()
        for _ in range(3):
            net = normflows.nets.LipschitzMLP([10, 16, 16, 10], init_zeros=False, lipschitz_const=0.9)
            steps += [normflows.flows.Residual(net, reduce_memory=False), normflows.flows.ActNorm(10)]
        return normflows.NormalizingFlow(normflows.distributions.DiagGaussian(10), steps)

    yield _case("normflows residual flow", contractions, (x,), call=likelihood, adds=3)

    def coupled(block: Any, **options: Any) -> nn.Module:
        model = FrEIA.framework.SequenceINN(10)
        for _ in range(2):
            model.append(block, **options)
        return model

    def narrow(a: int, b: int) -> nn.Module:
        return nn.Sequential(nn.Linear(a, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, b))

    kinds = FrEIA.modules
    yield _case("FrEIA NICE", lambda: coupled(kinds.NICECouplingBlock, subnet_constructor=narrow), (x,))
    yield _case("FrEIA GLOW", lambda: coupled(kinds.GLOWCouplingBlock, subnet_constructor=narrow), (x,))
    yield _case("FrEIA i-ResNet", lambda: coupled(kinds.IResNetLayer, internal_size=16), (x,))

    def half() -> nn.Module:
        return nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())

    def reversible() -> nn.Module:
        blocks = [
            memcnn.InvertibleModuleWrapper(
                memcnn.AdditiveCoupling(half(), half()), keep_input=True, keep_input_inverse=True
            )
            for _ in range(2)
        ]
        return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(8 * 36, 4))

    yield _case("memcnn RevNet", reversible, (_random(2, 8, 6, 6),))


def _operators() -> Iterator[Case]:
    from neuralop.models import FNO, TFNO

    x = _random(2, 3, 16, 16)
    size = {"n_modes": (8, 8), "in_channels": 3, "out_channels": 1, "hidden_channels": 16, "n_layers": 3}
    identity = {"fno_skip": "identity", "channel_mlp_skip": "identity", "preactivation": True}
    yield _case("FNO", lambda: FNO(**size), (x,))
    yield _case("FNO, identity skips", lambda: FNO(norm="group_norm", **identity, **size), (x,))
    yield _case("TFNO", lambda: TFNO(factorization="Tucker", rank=0.1, **size), (x,))
    yield _case(
        "FNO, complex data", lambda: FNO(complex_data=True, **identity, **size),
        (torch.complex(x, x.flip(0)),), call=lambda model, x: model(x).abs(),
    )  # fmt: skip


def _control() -> Iterator[Case]:
    import gymnasium
    import numpy
    from sb3_contrib.crossq.policies import CrossQPolicy
    from torchrl.modules import BatchRenorm1d, DTActor

    def box(size: int) -> Any:
        return gymnasium.spaces.Box(-1, 1, (size,), numpy.float32)

    yield _case(
        "CrossQ", lambda: CrossQPolicy(box(10), box(4), lambda _: 1e-3, net_arch=[16, 16]), (_random(8, 10),)
    )
    config = {
        "n_embd": 16, "n_layer": 2, "n_head": 2, "n_inner": 32, "n_positions": 64, "resid_pdrop": 0.1,
        "attn_pdrop": 0.1, "activation": "relu",
    }  # fmt: skip
    yield _case(
        "decision transformer", lambda: DTActor(10, 3, transformer_config=config),
        (_random(2, 5, 10), _random(2, 5, 3), _random(2, 5, 1)),
    )  # fmt: skip

    def renormalized() -> nn.Module:
        blocks = [Plus(BatchRenorm1d(16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)) for _ in range(3)]
        return nn.Sequential(nn.Linear(10, 16), *blocks, nn.Linear(16, 4))

    yield _case("batch renormalization", renormalized, (_random(8, 10),))


class Velocity(nn.Module):
    """The right side of an ODE, as in the examples of torchdiffeq."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.last = (
            nn.GroupNorm(4, 16),
            nn.Conv2d(17, 16, 3, 1, 1),
            nn.Conv2d(17, 16, 3, 1, 1),
        )

    def forward(self, t: Tensor, x: Tensor) -> Tensor:
        """The time is one more channel."""
        time = t.expand_as(x[:, :1])
        h = self.first(torch.cat([time, self.norm(x).relu()], 1)).relu()
        changed: Tensor = self.last(torch.cat([time, h], 1))
        return changed


class Adaptive(nn.Module):
    """PirateNet: gated layers, and a block a h + (1 - a) x with a learned a that starts at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.layers = nn.ModuleList(nn.ModuleList(nn.Linear(16, 16) for _ in range(3)) for _ in range(3))
        self.shares = nn.ParameterList(nn.Parameter(torch.zeros(1)) for _ in range(3))
        self.first, self.last = nn.Linear(2, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        """The equation of the paper."""
        x = self.first(x).sin()
        u, v = (gate(x).tanh() for gate in self.gates)
        for (a, b, c), share in zip(self.layers, self.shares, strict=True):
            f = a(x).tanh()
            g = b(f * u + (1 - f) * v).tanh()
            x = share * c(g * u + (1 - g) * v).tanh() + (1 - share) * x
        fields: Tensor = self.last(x)
        return fields


class Residue(nn.Module):
    """A physics-informed network: u and du/dt + u du/dx."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [Plus(nn.LayerNorm(16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16)) for _ in range(3)]
        self.net = nn.Sequential(nn.Linear(2, 16), *blocks, nn.Linear(16, 1))

    def forward(self, x: Tensor) -> Tensor:
        """It differentiates itself."""
        x = x.clone().requires_grad_()
        u = self.net(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        return torch.cat([u, slope[:, :1] + u * slope[:, 1:]], 1)


class Cells(nn.Module):
    """A neural cellular automaton: four steps with one rule."""

    def __init__(self) -> None:
        super().__init__()
        self.rule = nn.Sequential(nn.Conv2d(8, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 8, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Half of the cells change."""
        for _ in range(4):
            x = x + self.rule(x) * (torch.rand_like(x[:, :1]) < 0.5)
        return x


def _others() -> Iterator[Case]:
    import esm
    import gpytorch
    import kan
    import monotonenorm
    import torchdeq
    from hypnettorch.mnets import ResNet
    from ncps.torch import CfC
    from pytorch_metric_learning.losses import NTXentLoss
    from soft_moe_pytorch import SoftMoE
    from st_moe_pytorch import MoE, SparseMoEBlock
    from torchdiffeq import odeint

    x, words = _random(8, 10), _random(2, 8, 16)
    yield _case("ESM-2", lambda: esm.model.esm2.ESM2(2, 16, 4), (_whole(24, 2, 9, low=4),),
                call=lambda model, ids: model(ids)["logits"])  # fmt: skip
    yield from _sentences()

    def solved(model: nn.Sequential, x: Tensor) -> Tensor:
        first, field, last = model
        times = torch.tensor([0.0, 0.5, 1.0]).to(x)
        return last(odeint(field, first(x), times, method="euler")[-1])

    yield _case(
        "neural ODE, Euler",
        lambda: nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1), Velocity(), nn.Sequential(nn.Flatten(), nn.Linear(256, 4))
        ),
        (_random(2, 1, 8, 8),), call=solved, adds=2, doubtful=2,
    )  # fmt: skip

    def equilibrium(model: nn.ModuleDict, x: Tensor) -> Tensor:
        given = model["inject"](x)
        found, _ = model["solver"](
            lambda z: model["norm"](given + model["rule"](z).relu()), torch.zeros_like(given)
        )
        return found[-1]

    yield _case(
        "deep equilibrium",
        lambda: nn.ModuleDict({
            "inject": nn.Linear(10, 16), "rule": nn.Linear(16, 16), "norm": nn.LayerNorm(16),
            "solver": torchdeq.get_deq(f_max_iter=6, f_solver="fixed_point_iter"),
        }),
        (x,), call=equilibrium, adds=6, doubtful=6,  # The seventh call, the first, is of zeros.
    )  # fmt: skip

    class DeepKernel(gpytorch.models.ExactGP):
        def __init__(self) -> None:
            super().__init__(None, None, gpytorch.likelihoods.GaussianLikelihood())
            blocks = [Plus(nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16)) for _ in range(2)]
            self.net = nn.Sequential(nn.Linear(10, 16), *blocks, nn.Linear(16, 2))
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(x.new_zeros(len(x)), self.kernel(self.net(x)))

    yield _case("deep kernel", DeepKernel, (x,), call=lambda gp, x: gp.forward(x).covariance_matrix)
    yield _case("liquid network, CfC", lambda: CfC(10, 16, proj_size=4), (_random(2, 5, 10),))
    yield _case("KAN", lambda: kan.KAN(width=[10, 5, 4], grid=3, k=3, seed=0, auto_save=False), (x,), adds=2)

    def monotone() -> nn.Module:
        bounded = [monotonenorm.direct_norm(nn.Linear(a, b), kind="one-inf") for a, b in ((10, 16), (16, 1))]
        return monotonenorm.SigmaNet(
            nn.Sequential(bounded[0], monotonenorm.GroupSort(2), bounded[1]), 1.0, [1] * 10
        )

    yield _case("monotone network", monotone, (x,), adds=1)
    yield _case(
        "soft mixture of experts",
        lambda: nn.Sequential(
            *(Plus(nn.LayerNorm(16), SoftMoE(dim=16, seq_len=8, num_experts=2)) for _ in range(2))
        ),
        (words,),
    )
    yield _case(
        "sparse mixture of experts",
        lambda: SparseMoEBlock(
            MoE(dim=16, num_experts=4, gating_top_n=2), add_ff_before=True, add_ff_after=True
        ),
        (words,),
    )
    yield _case(
        "main network of a hypernetwork",
        lambda: ResNet(in_shape=(8, 8, 3), num_classes=4, n=1, use_batch_norm=True, verbose=False),
        (_random(2, 192),), adds=3,
    )  # fmt: skip

    def pairs(model: nn.Module, a: Tensor, b: Tensor) -> tuple[Tensor, Any]:
        together = torch.cat([model(a), model(b)])
        return together, NTXentLoss()(together, torch.arange(len(a)).repeat(2))

    def siamese() -> nn.Module:
        block = Plus(nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
        return nn.Sequential(
            nn.Conv2d(1, 8, 3), block, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
        )

    photos = _random(4, 1, 8, 8)
    yield _case("siamese network", siamese, (photos, photos.flip(0)), call=pairs, adds=2)
    yield _case("PirateNet", Adaptive, (x[:, :2],), adds=3)
    yield _case("physics-informed network", Residue, (x[:, :2],))
    yield _case("cellular automaton", Cells, (_random(2, 8, 8, 8),), adds=4, doubtful=4)


def _sentences() -> Iterator[Case]:
    import transformers
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

    def build() -> nn.Module:
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
        with tempfile.TemporaryDirectory() as folder:
            words = Path(folder, "vocab.txt")
            words.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]))
            transformers.BertModel(transformers.BertConfig(vocab_size=13, **sizes)).save_pretrained(folder)
            transformers.BertTokenizer(str(words)).save_pretrained(folder)
            return SentenceTransformer(modules=[Transformer(folder), Pooling(16)], device="cpu")

    ids = _whole(13, 2, 6, low=5)
    texts = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    yield _case(
        "sentence transformer",
        build,
        (texts,),
        call=lambda model, texts: model(dict(texts))["sentence_embedding"],
    )
