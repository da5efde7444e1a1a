import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from jobs.driver.result_line import PREFIX, result_line


def test_keys_and_their_order():
    line = result_line("ok", 0, Path("/runs/a"), 6, None, error=None)
    assert line == (
        'RESULT {"status": "ok", "exit_code": 0, "run_dir": "/runs/a", "rows": 6, "wandb_dir": null, "error": null}'
    )


def test_by_keyword_as_the_jobs_call_it():
    line = result_line(
        status="stopped", exit_code=143, run_dir="/x", rows=0, wandb_dir=Path("/x/wandb/run"), error="é\n"
    )
    fields = json.loads(line.removeprefix(PREFIX))
    assert fields["wandb_dir"] == "/x/wandb/run"
    assert fields["error"] == "é\n"


@given(st.text(), st.floats(), st.dictionaries(st.text(), st.integers()))
def test_always_one_line_of_json(text, number, mapping):
    line = result_line(text, 1, text, 0, text, error=text, number=number, mapping=mapping)
    assert len(line.splitlines()) == 1
    assert line.isascii()
    json.loads(line.removeprefix(PREFIX), parse_constant=lambda constant: 1 / 0)
