"""What a stage computes of a served table is what it computes of the weight itself, forward and backward."""

import pytest
import torch
from direct_servers import DirectServers, make_spec
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name everybody knows it by

import heterps_compile
from heterps_compile.backends.torch.read_stage import read_stage
from heterps_compile.backends.torch.recomputing import Recomputing
from heterps_compile.errors import RunError
from heterps_compile.examples import EXAMPLES
from heterps_compile.runtime.servers.client import Client
from heterps_compile.runtime.servers.optimizers import Sgd
from heterps_compile.runtime.servers.served_table import PulledRows, ServedTable, serve_tables
from heterps_compile.runtime.servers.spec import ServerSpec
from heterps_compile.runtime.servers.trace_lookups import find_tables

LR = 0.5


def seeded(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def ids(*shape: int, below: int = 20) -> torch.Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(sum(shape)))


def aten_bag(weight, mode, padding, x, weights=None):
    offsets = torch.arange(0, x.numel(), x.shape[1])
    op = torch.ops.aten.embedding_bag.padding_idx
    return op(weight, x.reshape([-1]), offsets, False, mode, False, weights, False, padding)[0]


CALLS = {
    "torch.embedding": torch.embedding,
    "torch.embedding, padded": lambda w, x: torch.embedding(w, x, 3),
    "torch.embedding, padding that is in no sample": lambda w, x: torch.embedding(w, x.clamp(max=18), 19),
    "torch.embedding by name": lambda w, x: torch.embedding(weight=w, indices=x, padding_idx=-1),
    "aten.embedding": lambda w, x: torch.ops.aten.embedding.default(w, x, 3),
    "F.embedding": lambda w, x: F.embedding(x, w),
    "F.embedding, padded from the end": lambda w, x: F.embedding(x, w, padding_idx=-1),
    "F.embedding, by frequency": lambda w, x: F.embedding(x, w, scale_grad_by_freq=True),
    "F.embedding, sparse": lambda w, x: F.embedding(x, w, sparse=True),
    "F.embedding of int32": lambda w, x: F.embedding(x.int(), w),
    "F.embedding of one id": lambda w, x: F.embedding(x[0, 0], w),
    "F.embedding of none": lambda w, x: F.embedding(x[:0], w).sum() + 0 * F.embedding(x, w).sum(),
    "F.embedding_bag": lambda w, x: F.embedding_bag(x, w),
    "F.embedding_bag, padded max": lambda w, x: F.embedding_bag(x, w, mode="max", padding_idx=3),
    "F.embedding_bag, offsets": lambda w, x: F.embedding_bag(x.flatten(), w, torch.tensor([0, 4, 4]), mode="sum"),
    "F.embedding_bag, weighted": lambda w, x: F.embedding_bag(x, w, mode="sum", per_sample_weights=seeded(6, 3)),
    "aten.embedding_bag, sum": lambda w, x: aten_bag(w, 0, None, x),
    "aten.embedding_bag, mean, padded": lambda w, x: aten_bag(w, 1, 3, x),
    "aten.embedding_bag, max": lambda w, x: aten_bag(w, 2, None, x),
    "aten.embedding_bag, weighted": lambda w, x: aten_bag(w, 0, None, x, seeded(18)),
    "twice in one step": lambda w, x: torch.embedding(w, x) * torch.embedding(w, x.flip(0)),
    "ids that were looked up": lambda w, x: torch.embedding(w, torch.embedding(w, x).abs().long()[:, :, 0]),
    "shape": lambda w, x: torch.embedding(w, x).reshape(-1, w.shape[1]),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_forward_and_backward_equal_the_weight_itself(tmp_path, call):
    weight = seeded(20, 4)
    servers = DirectServers(make_spec(tmp_path, {"emb": weight}, optimizer=Sgd(LR)))
    client = Client(servers.spec, 0, link=servers)
    served = ServedTable(client, 0, torch.device("cpu"))
    plain = nn.Parameter(weight.clone())
    client.before_step(0)
    ours, theirs = call(served, ids(6, 3)) * 2, call(plain, ids(6, 3)) * 2
    assert torch.equal(ours, theirs)
    gradient = torch.cos(torch.arange(theirs.numel())).reshape(theirs.shape)
    with torch.sparse.check_sparse_tensor_invariants():
        ours.backward(gradient)
        theirs.backward(gradient)
    client.after_backward(0)
    expected = weight - LR * plain.grad.to_dense()
    torch.testing.assert_close(servers.weights(), expected, rtol=1e-6, atol=1e-6)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Embedding(20, 4), nn.EmbeddingBag(30, 2)
        self.head = nn.Linear(6, 1)

    def forward(self, x):
        one, two = F.embedding(x, self.one.weight), F.embedding_bag(x, self.two.weight)
        return (self.head(torch.cat([one.sum(1), two], 1)),)


def served_model(tmp_path, **more):
    torch.manual_seed(0)
    model, whole = Model(), Model()
    whole.load_state_dict(model.state_dict())
    tables = {"one.weight": model.one.weight.detach(), "two.weight": model.two.weight.detach()}
    servers = DirectServers(make_spec(tmp_path, tables, optimizer=Sgd(LR), **more))
    client = Client(servers.spec, 0, link=servers)
    assert serve_tables(model, client) == ("one.weight", "two.weight")
    return model, whole, servers, client


def test_two_tables_of_different_widths_train_as_one_process_does(tmp_path):
    model, whole, servers, client = served_model(tmp_path)
    optimizers = [torch.optim.SGD(one.parameters(), LR) for one in (model, whole)]
    for step in range(4):
        client.before_step(step)
        for micro_batch in range(2):
            x = ids(8, 3, below=20 - micro_batch)
            for one in (model, whole):
                (one(x)[0].square().mean() / 2).backward()
        client.after_backward(step)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(servers.weights(0), whole.one.weight.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(servers.weights(1), whole.two.weight.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(model.head.weight, whole.head.weight, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("prefetches", [False, True])
def test_a_forward_that_is_repeated_for_its_backward_pulls_its_rows_once(tmp_path, prefetches):
    found = []
    for how in ("kept", "repeated"):
        (tmp_path / how).mkdir()
        model, _, servers, client = served_model(tmp_path / how)
        if prefetches:
            model.register_forward_pre_hook(lambda _, x, client=client: client._get_rows([0, 1], [x[0], x[0]]))
        run = Recomputing(model) if how == "repeated" else model
        for step in range(2):
            client.before_step(step)
            made = [run(ids(8, 3, below=20 - micro_batch))[0] for micro_batch in range(3)]
            for y in made:
                y.square().mean().backward()
            client.after_backward(step)
        found.append((servers.requests, servers.weights(0), servers.weights(1), model.head.weight.grad))
    kept, repeated = found
    assert kept[0] == repeated[0]
    assert all(torch.equal(a, b) for a, b in zip(kept[1:], repeated[1:], strict=True))


def test_the_look_ups_of_a_micro_batch_are_one_request_a_server(tmp_path):
    model, _, servers, client = served_model(tmp_path, servers=2)
    client.before_step(0)
    model(ids(8, 3))  # sums the rows of one table before it looks up the other
    assert servers.requests == 2


def test_ids_that_are_drawn_at_random_are_not_drawn_twice(tmp_path):
    class Noise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Embedding(20, 4)

        def forward(self, x):
            one = F.embedding(x, self.one.weight).sum() + F.embedding(x + 1, self.one.weight).sum()
            return one, F.embedding(torch.randint(0, 20, (5,)), self.one.weight)

    model, whole = Noise(), Noise()
    whole.load_state_dict(model.state_dict())
    servers = DirectServers(make_spec(tmp_path, {"one.weight": model.one.weight.detach()}, servers=1))
    serve_tables(model, Client(servers.spec, 0, link=servers))
    torch.manual_seed(3)
    ours = model(ids(2, 2, below=19))
    torch.manual_seed(3)
    for mine, expected in zip(ours, whole(ids(2, 2, below=19)), strict=True):
        assert torch.equal(mine, expected)
    assert servers.requests == 2  # the first two together


def test_a_served_table_is_no_parameter_and_not_saved(tmp_path):
    model, *_ = served_model(tmp_path)
    assert [name for name, _ in model.named_parameters()] == ["head.weight", "head.bias"]
    assert list(model.state_dict()) == ["head.weight", "head.bias"]
    assert repr(model.one.weight) == "ServedTable('one.weight', 20 x 4)"


def test_outputs_of_a_stage_are_plain_tensors(tmp_path):
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Embedding(20, 4)

        def forward(self, x):
            return self.one(x), [self.one(x)]

    stage = Rows()
    servers = DirectServers(make_spec(tmp_path, {"one.weight": stage.one.weight.detach()}))
    serve_tables(stage, Client(servers.spec, 0, link=servers))
    first, (second,) = stage(ids(2, 2))
    assert type(first) is type(second) is torch.Tensor
    assert not isinstance(first, PulledRows)


def test_without_autograd_nothing_is_pushed(tmp_path):
    model, whole, servers, client = served_model(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(model(ids(5, 3)), whole(ids(5, 3)))
    client.after_backward(0)
    assert torch.equal(servers.weights(0), whole.one.weight)


@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
def test_half_precision_on_the_wire_is_as_exact_as_its_digits(tmp_path, wire):
    model, whole, _, client = served_model(tmp_path, wire=wire)
    client.before_step(0)
    torch.testing.assert_close(model(ids(5, 3)), whole(ids(5, 3)), rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(model.one(ids(5, 3)), whole.one.weight[ids(5, 3)].to(getattr(torch, wire)).float())


@pytest.mark.parametrize(
    ("what", "use"),
    [
        ("linear", lambda w: F.linear(torch.ones(1, 4), w)),
        ("add", lambda w: w + 1),
        ("sum", lambda w: w.sum()),
        ("F.embedding with max_norm|embedding with max_norm", lambda w: F.embedding(ids(2), w, max_norm=1.0)),
        ("clone", lambda w: w.clone()),
    ],
)
def test_any_other_use_is_refused_by_name(tmp_path, what, use):
    servers = DirectServers(make_spec(tmp_path, {"emb": seeded(20, 4)}))
    table = ServedTable(Client(servers.spec, 0, link=servers), 0, torch.device("cpu"))
    with pytest.raises(RunError, match=rf"'emb'.*'_*({what})_*'"):
        use(table)


@pytest.mark.parametrize(("wrong", "shown"), [(20, "20"), (-1, "-1"), (123_456, "123,456")])
def test_an_id_outside_the_table_is_named_with_the_rows(tmp_path, wrong, shown):
    model, _, _, client = served_model(tmp_path)
    client.before_step(7)
    with pytest.raises(RunError, match=rf"step 7\b.*row {shown}.*'one.weight'.*\b0\b.*\b19\b"):
        model.one(torch.tensor([3, wrong])).sum()


def test_a_name_that_is_no_table_is_refused(tmp_path):
    _, whole, servers, _ = served_model(tmp_path)
    with pytest.raises(RunError, match=r"'head.weight'"):
        serve_tables(whole, Client(servers.spec, 0, link=servers), ["head.weight"])


def compiled_stage(folder, model, inputs):
    compiled = heterps_compile.compile(model, inputs, mode="training", backend="torch", max_stages=1, method="greedy")
    compiled.save(folder)
    return read_stage(folder / "stage_0.py", folder / "stage_0.safetensors", 0)


class Everything(nn.Module):
    """Tables as written stages have them: bags, padding, numbered ones, one that is tied, one used otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.padded = nn.EmbeddingBag(20, 4, mode="mean", padding_idx=0), nn.Embedding(20, 4, padding_idx=1)
        self.numbered = nn.ParameterList([nn.Parameter(torch.randn(20, 4))])
        self.used = nn.Embedding(20, 4)
        self.tied, self.twin = nn.Embedding(20, 4), nn.Embedding(20, 4)
        self.twin.weight = self.tied.weight

    def forward(self, x):
        rows = self.bag(x) + self.padded(x).sum(1) + F.embedding(x, self.numbered[0]).sum(1)
        rows = rows + self.tied(x).sum(1) + self.twin(x).sum(1)
        return F.linear(rows, self.used.weight) + self.used(x).sum((1, 2))[:, None]


def test_the_tables_of_a_written_stage(tmp_path):
    torch.manual_seed(0)
    model, x = Everything(), ids(6, 3)
    stage = compiled_stage(tmp_path / "out", model, (x,))
    tables = find_tables(stage, tmp_path / "out" / "stage_0.safetensors")
    assert [table.name for table in tables] == ["bag.weight", "padded.weight", "numbered.0"]
    assert find_tables(stage, tmp_path, keep=["bag.weight", "numbered.0"])[0].name == "padded.weight"
    servers = DirectServers(ServerSpec((0,), (1, 2), tables, Sgd(LR)))
    client = Client(servers.spec, 0, link=servers)
    assert serve_tables(stage, client) == ("bag.weight", "padded.weight", "numbered.0")
    client.before_step(0)
    (ours,), theirs = stage(x), model(x)
    torch.testing.assert_close(ours, theirs)
    ours.square().mean().backward()
    theirs.square().mean().backward()
    client.after_backward(0)
    for number, weight in enumerate((model.bag.weight, model.padded.weight, model.numbered[0])):
        torch.testing.assert_close(servers.weights(number), (weight - LR * weight.grad).detach(), rtol=1e-5, atol=1e-6)


def test_ctrdnn_pulls_its_fields_with_one_request(tmp_path):
    model, inputs = EXAMPLES["ctrdnn"](batch=8, fields=5, rows=50, width=4, hidden=(8, 4), dense=2)
    stage = compiled_stage(tmp_path / "out", model, inputs)
    tables = find_tables(stage, tmp_path / "out" / "stage_0.safetensors")
    assert [table.name for table in tables] == [f"tables.{field}.weight" for field in range(5)]
    servers = DirectServers(ServerSpec((0,), (1,), tables, Sgd(LR)))
    serve_tables(stage, Client(servers.spec, 0, link=servers))
    torch.testing.assert_close(stage(*inputs)[0], model(*inputs))
    assert servers.requests == 1
