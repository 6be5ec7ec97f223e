import pytest
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from heterps_compile.runtime.engines.torchrun_agent import run_agent


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (None, 0, ""),
        (SignalException("Process 1 got signal: 2", sigval=2), 130, ""),
        (ChildFailedError("heterps_compile", {0: ProcessFailure(0, 1, 1, "none")}), 1, ""),
        (TimeoutError("nobody\ncame"), 1, "Error: torchrun's agent failed (TimeoutError): nobody came\n"),
    ],
)
def test_the_end_of_an_agent_is_an_exit_code_and_at_most_a_line(error, code, said, monkeypatch, capsys):
    seen = []

    def run(arguments):
        seen.append((arguments.training_script, arguments.training_script_args, arguments.max_restarts))
        if error is not None:
            raise error

    monkeypatch.setattr(torchrun, "run", run)
    assert run_agent(["--max-restarts=2", "-m", "--", "heterps_compile", "run", "--steps", "3"]) == code
    assert seen == [("heterps_compile", ["run", "--steps", "3"], 2)]
    assert capsys.readouterr().err == said
