"""Folder of a local Ray."""

import pytest

from jobs.errors import InfrastructureError
from jobs.gang import temp_dir
from jobs.gang.temp_dir import TempDir


@pytest.fixture
def short(tmp_path, monkeypatch):
    """A folder whose path is short enough, as that of a test isn't."""
    monkeypatch.setattr(temp_dir, "_MAX_BASE_BYTES", len(str(tmp_path)))
    monkeypatch.setattr(temp_dir, "_OTHERS", (str(tmp_path),))
    for name in ("RAY_TMPDIR", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize("name", ["RAY_TMPDIR", "TMPDIR"])
def test_the_users_folder_is_taken_and_left_as_it_was(short, monkeypatch, caplog, name):
    monkeypatch.setattr(temp_dir, "_OTHERS", ("/nonexistent",))
    monkeypatch.setenv(name, str(short))
    made = TempDir.make()
    assert made.path.parent == short
    made.remove()
    assert list(short.iterdir()) == []
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("bad", "why"), [("/nonexistent", "No such file or directory"), ("longer", "longer than"), ("/proc", "")]
)
def test_a_warning_names_the_variable_where_another_folder_is_taken(short, monkeypatch, caplog, bad, why):
    folder = short / "much-longer"
    folder.mkdir()
    value = str(folder) if bad == "longer" else bad
    monkeypatch.setenv("RAY_TMPDIR", value)
    assert TempDir.make().path.parent == short
    (message,) = caplog.messages
    assert message.startswith(f"RAY_TMPDIR={value}: {why}")


def test_no_folder_at_all(short, monkeypatch):
    monkeypatch.setenv("TMPDIR", "/nonexistent/a")
    monkeypatch.setattr(temp_dir, "_OTHERS", ("/nonexistent/b",))
    with pytest.raises(InfrastructureError, match=r"TMPDIR=/nonexistent/a: No .*/nonexistent/b: .*; set RAY_TMPDIR"):
        TempDir.make()


def test_what_an_error_names_stays(short):
    made = TempDir.make()
    logs = made.path / "session_2026-12-01_13-23-54_351412_26607" / "logs"
    logs.mkdir(parents=True)
    (logs / "raylet.out").write_text("[2026-12-01 13:23:58,387 I 27079 27079] (raylet) main.cc:1: started\n")
    assert made.log_errors() == ""
    cause = "E1201 13:23:58.050994576   27079 thd.cc:157]  pthread_create failed: Resource temporarily unavailable"
    frame = "[2026-12-01 13:23:58,394 E 7 7] logging.cc:474:     @     0x7f55c4a5a050"
    (logs / "raylet.err").write_text(f"{cause}\n{frame}\n")
    assert made.log_errors() == f"raylet.err: {cause}"
    made.keeps = True
    made.remove()
    assert (logs / "raylet.err").exists()
