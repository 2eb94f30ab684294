"""The word behind --tools."""

import pytest

from minvenus.config import ConfigError
from minvenus.tools.cassette import Recorder, Replay
from minvenus.tools.folder import FolderTools
from minvenus.tools.make import make_tools
from minvenus.tools.web import LiveTools


@pytest.mark.parametrize("spec", ["", "web", "Live", "live:", "live:x", "toyweb:3", "folder", "folder:", "record", "replay:",
                                  ":x"])
def test_an_unknown_spec_is_an_error_that_names_the_valid_ones(spec, monkeypatch):
    monkeypatch.setenv("SERPER_API_KEY", "k")
    with pytest.raises(ConfigError, match="toyweb, folder:PATH, live, record:FILE, replay:FILE; got"):
        make_tools(spec)


def test_each_spec_makes_its_tools(tmp_path, monkeypatch):
    monkeypatch.setenv("SERPER_API_KEY", "k")
    (tmp_path / "a: b.txt").write_text("x")
    assert isinstance(make_tools("live"), LiveTools)
    recorder = make_tools(f"record:{tmp_path}/tape")
    assert isinstance(recorder, Recorder) and isinstance(recorder.tools, LiveTools)
    recorder.close()
    assert isinstance(make_tools(f"replay:{tmp_path}/tape"), Replay)
    assert isinstance(make_tools(f"folder:{tmp_path}"), FolderTools)


def test_the_toy_web_is_made_from_the_seed():
    toyweb = pytest.importorskip("minvenus.tools.toyweb")
    tools = make_tools("toyweb", seed=3)
    assert isinstance(tools, toyweb.ToyWeb) and tools.seed == 3


def test_live_tools_from_a_spec_have_no_way_around_the_address_check(monkeypatch):
    monkeypatch.setenv("SERPER_API_KEY", "k")
    assert make_tools("live").allow is None


@pytest.mark.parametrize("spec", ["live", "record:tape"])
def test_a_missing_key_is_one_line_that_names_the_variable(spec):
    with pytest.raises(ConfigError, match=r"^live search needs SERPER_API_KEY [^\n]*$"):
        make_tools(spec)


@pytest.mark.parametrize(("variable", "value", "message"), [
    ("EXTRACT_BASE_URL", "http://127.0.0.1:1/v1", "both EXTRACT_BASE_URL and EXTRACT_MODEL"),
    ("EXTRACT_MODEL", "m", "both EXTRACT_BASE_URL and EXTRACT_MODEL"),
    ("JINA_BASE_URL", "r.example/secret", "JINA_BASE_URL must begin with http"),
    ("SERPER_BASE_URL", "secret", "SERPER_BASE_URL must begin with http"),
    ("SERPER_API_KEY", "sec\nret", "SERPER_API_KEY has characters"),
    ("SERPER_API_KEY", "“secret”", "SERPER_API_KEY has characters"),
])
def test_a_half_set_environment_is_refused_before_the_run_without_showing_values(monkeypatch, variable, value, message):
    monkeypatch.setenv("SERPER_API_KEY", "k")
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=message) as caught:
        make_tools("live")
    assert "secret" not in str(caught.value) and "sec\nret" not in str(caught.value)
