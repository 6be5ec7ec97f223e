"""Torch models to test on, and what it takes to cut one and run its parts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from heterps_compile.backends.torch.backend import TorchBackend
from heterps_compile.examples.ctrdnn import ctrdnn
from heterps_compile.ir.graph import OPAQUE, Graph
from heterps_compile.ir.partition import Partition, cut_graph
from heterps_compile.runtime.in_process import run_stages

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
BACKEND = TorchBackend()


def small_ctrdnn() -> Built:
    model, inputs = ctrdnn(batch=6, fields=5, rows=30, width=4, hidden=(16, 16, 8, 8))
    return model, inputs, {}


def bert() -> Built:
    from transformers import BertConfig, BertModel  # noqa: PLC0415 - seconds, and only here

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=100
    )
    mask = torch.tensor([[1, 1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1]])
    return BertModel(config), (), {"input_ids": torch.randint(0, 100, (2, 8)), "attention_mask": mask}


def gpt2() -> Built:
    from transformers import GPT2Config, GPT2LMHeadModel  # noqa: PLC0415 - seconds, and only here

    torch.manual_seed(0)
    config = GPT2Config(
        n_embd=32, n_layer=2, n_head=2, vocab_size=100, n_positions=16, use_cache=False, bos_token_id=0, eos_token_id=0
    )
    return GPT2LMHeadModel(config), (torch.randint(0, 100, (2, 8)),), {}


def vit() -> Built:
    from transformers import ViTConfig, ViTForImageClassification  # noqa: PLC0415 - seconds, and only here

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=32, patch_size=8
    )
    return ViTForImageClassification(config), (), {"pixel_values": torch.randn(2, 3, 32, 32)}


def resnet() -> Built:
    from transformers import ResNetConfig, ResNetForImageClassification  # noqa: PLC0415 - seconds, and only here

    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[16, 32], depths=[2, 2])
    return ResNetForImageClassification(config), (), {"pixel_values": torch.randn(2, 3, 32, 32)}


def resnet50() -> Built:
    from transformers import ResNetConfig, ResNetForImageClassification  # noqa: PLC0415 - seconds, and only here

    torch.manual_seed(0)
    return ResNetForImageClassification(ResNetConfig()), (), {"pixel_values": torch.randn(1, 3, 64, 64)}


def llama() -> Built:
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 - seconds, and only here

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=100, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config), (torch.randint(0, 100, (2, 8)),), {}


def t5() -> Built:
    from transformers import T5Config, T5ForConditionalGeneration  # noqa: PLC0415 - seconds, and only here

    torch.manual_seed(0)
    config = T5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=100, use_cache=False,
        decoder_start_token_id=0,
    )  # fmt: skip
    ids = torch.randint(1, 100, (2, 8))
    return T5ForConditionalGeneration(config), (), {"input_ids": ids, "decoder_input_ids": ids[:, :5]}


def whisper() -> Built:
    from transformers import WhisperConfig, WhisperForConditionalGeneration  # noqa: PLC0415 - seconds, and only here

    torch.manual_seed(0)
    config = WhisperConfig(
        d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=64, decoder_ffn_dim=64, vocab_size=100, num_mel_bins=16, max_source_positions=20,
        max_target_positions=16, use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    inputs = {"input_features": torch.randn(2, 16, 40), "decoder_input_ids": torch.randint(3, 100, (2, 5))}
    return WhisperForConditionalGeneration(config), (), inputs


def thin_resnet50() -> Built:
    """Return all 50 layers, narrower than they are sold, for images of 64 by 64."""
    from transformers import ResNetConfig, ResNetForImageClassification  # noqa: PLC0415 - seconds, and only here

    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[16, 24, 32, 48], depths=[3, 4, 6, 3])
    return ResNetForImageClassification(config), (), {"pixel_values": torch.randn(4, 3, 64, 64)}


REAL: Mapping[str, Callable[[], Built]] = {
    "ctrdnn": small_ctrdnn,
    "bert": bert,
    "gpt2": gpt2,
    "vit": vit,
    "resnet": resnet,
}


class SkipNet(nn.Module):
    """A skip over two stages, tied weights, two inputs, two outputs, a BatchNorm buffer, dropout, in-place ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.mix = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.25)
        self.last = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.words.weight
        self.register_buffer("shift", torch.linspace(-1, 1, 8))

    def forward(self, ids: Tensor, weights: Tensor) -> dict[str, Any]:
        embedded = (self.words(ids) * weights.unsqueeze(-1)).sum(1)
        hidden = self.act(self.norm(self.mix(embedded))) + self.shift
        hidden = nn.functional.relu(self.last(self.drop(hidden)))
        hidden = hidden + embedded
        return {"logits": self.head(hidden), "pair": (hidden.mean(dim=1), None), "three": 3}


def skip_net(*, training: bool = False) -> tuple[fx.GraphModule, tuple[Tensor, Tensor]]:
    """Return the net as ``torch.fx.symbolic_trace`` sees it, and inputs."""
    torch.manual_seed(1)
    module = fx.symbolic_trace(SkipNet().train(training))
    return module, (torch.randint(0, 11, (4, 3)), torch.rand(4, 3))


def contiguous_groups(graph: Graph, count: int) -> list[range]:
    """Divide a graph's nodes into so many neighbouring runs, of like size, with no cut through what is no tensor."""
    total = len(graph.nodes)
    free = [True] * (total + 1)
    for name, producer in graph.producer.items():
        if graph.values[name].dtype == OPAQUE:
            for reader in graph.consumers.get(name, ()):
                free[producer + 1 : reader + 1] = [False] * (reader - producer)
    cuts = [0]
    for part in range(1, count):
        wanted = max(part * total // count, cuts[-1] + 1)
        cuts.append(next(i for i in range(wanted, total) if free[i]))
    return [range(a, b) for a, b in zip(cuts, [*cuts[1:], total], strict=True)]


def cut_into(graph: Graph, count: int) -> Partition:
    return cut_graph(graph, contiguous_groups(graph, count))


def cut_before(graph: Graph, *names: str) -> Partition:
    """Cut a graph before each of the named nodes."""
    places = [next(i for i, node in enumerate(graph.nodes) if node.name == name) for name in names]
    ends = [*places, len(graph.nodes)]
    return cut_graph(graph, [range(a, b) for a, b in zip([0, *places], ends, strict=True)])


def run(graph: Graph, partition: Partition, stages: Sequence[Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    return run_stages(partition.stages, stages, inputs, graph.outputs)


def largest_difference(graph: Graph, staged: Mapping[str, Any], whole: Sequence[Any]) -> float:
    """Return the largest difference of an output relative to its scale."""
    worst = 0.0
    for name, theirs in zip(graph.outputs, whole, strict=True):
        ours = staged[name]
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        worst = max(worst, float((ours - theirs).detach().abs().max() / theirs.detach().abs().max()))
    return worst
