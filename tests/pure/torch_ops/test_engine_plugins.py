"""What engines get by entry points: nothing unasked, and classes of their kind."""

import logging
import sys
import types

import pytest

import stretto_autoload

pytest.importorskip("torch")

import torch

from stretto.errors import MissingExtraError
from stretto.torch.serving import sglang_engine, vllm_engine


def module(monkeypatch, name, **has):
    """Let a module be importable, with whatever it is in."""
    path = ""
    for part in name.split("."):
        path = f"{path}.{part}".strip(".")
        if path not in sys.modules:
            monkeypatch.setitem(sys.modules, path, types.ModuleType(path))
    for key, value in has.items():
        monkeypatch.setattr(sys.modules[name], key, value, raising=False)


@pytest.fixture
def vllm(monkeypatch):
    """Let a vLLM with a CUDA device be installed."""
    base = type("CudaPlatform", (), {"get_device_communicator_cls": "its own"})
    comm = type("CudaCommunicator", (), {})
    module(monkeypatch, "vllm.platforms", cuda_platform_plugin=lambda: "CUDA")
    module(monkeypatch, "vllm.platforms.cuda", CudaPlatform=base)
    module(monkeypatch, vllm_engine._COMMUNICATOR, CudaCommunicator=comm)
    yield base, comm
    vllm_engine.platform_class.cache_clear()
    vllm_engine.communicator_class.cache_clear()


@pytest.mark.parametrize("named", [None, "", "other", "strettos"])
def test_an_engine_that_does_not_name_stretto_keeps_its_own(monkeypatch, vllm, named):
    """Installing changes nothing, though engines call all plug-ins by default."""
    for variable in ("VLLM_PLUGINS", "SGLANG_PLUGINS"):
        monkeypatch.delenv(variable, raising=False)
        if named is not None:
            monkeypatch.setenv(variable, named)

    assert stretto_autoload.vllm_platform() is None
    assert stretto_autoload.sglang_hooks() is None
    stretto_autoload.deep_ep()
    assert "deep_ep" not in sys.modules


@pytest.mark.parametrize("variable", ["VLLM_PLUGINS", "SGLANG_PLUGINS"])
def test_deep_ep_is_ours_where_it_is_named(monkeypatch, variable):
    """And nowhere else: stretto alone does not name it."""
    for name in ("deep_ep", "deep_ep.utils"):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setenv(variable, "stretto")
    stretto_autoload.deep_ep()
    assert "deep_ep" not in sys.modules

    monkeypatch.setenv(variable, "stretto, stretto_deep_ep")
    stretto_autoload.deep_ep()
    assert sys.modules["deep_ep"].__name__ == "stretto.experts.deep_ep"
    monkeypatch.delitem(sys.modules, "deep_ep.utils")


def test_vllm_gets_its_own_classes_with_ours_before(monkeypatch, vllm):
    """The path leads to a platform of vLLM's, and that names a communicator of its."""
    base, comm = vllm
    monkeypatch.setenv("VLLM_PLUGINS", "lora, stretto")

    module_name, _, name = stretto_autoload.vllm_platform().rpartition(".")
    platform = getattr(sys.modules[module_name], name)
    path = platform().get_device_communicator_cls()
    made = getattr(sys.modules[path.rpartition(".")[0]], path.rpartition(".")[2])

    assert issubclass(platform, base)
    assert (vllm_engine.OverCuda, comm) == made.__mro__[1:3]


def test_without_a_cuda_device_vllm_keeps_its_own(monkeypatch, vllm, caplog):
    """It is said, since somebody asked for it."""
    monkeypatch.setenv("VLLM_PLUGINS", "stretto")
    module(monkeypatch, "vllm.platforms", cuda_platform_plugin=lambda: None)

    with caplog.at_level(logging.WARNING):
        assert stretto_autoload.vllm_platform() is None

    assert "finds no CUDA device" in caplog.text


def test_an_engine_that_is_not_there_is_named():
    """Whoever asks for the classes without it reads what to install."""
    with pytest.raises(MissingExtraError, match="install vllm"):
        _ = vllm_engine.StrettoPlatform
    with pytest.raises(MissingExtraError, match="install sglang"):
        sglang_engine.hook()
    with pytest.raises(AttributeError, match="Other"):
        _ = vllm_engine.Other


def test_a_stateless_group_is_vllms(monkeypatch):
    """torch.distributed knows nothing of it, so nobody can be met by it."""
    monkeypatch.setattr(torch.distributed, "get_process_group_ranks", {}.__getitem__)

    assert not vllm_engine._ours("a group", torch.device("cuda"))


def test_sglang_is_asked_to_hook_its_choice(monkeypatch):
    """Around the function that it calls; a group that is not ours gets SGLang's own."""
    hooks = []
    registry = types.SimpleNamespace(register=lambda *given: hooks.append(given))
    module(
        monkeypatch,
        "sglang.srt.plugins.hook_registry",
        HookRegistry=registry,
        HookType=types.SimpleNamespace(AROUND="around"),
    )
    monkeypatch.setenv("SGLANG_PLUGINS", "stretto")

    stretto_autoload.sglang_hooks()

    assert [(sglang_engine.TARGET, sglang_engine.choose, "around")] == hooks
    reached = {"one host": False, "hosts": True}

    def made(group, device):
        return types.SimpleNamespace(disabled=reached[group], group=group)

    def theirs(group, device):
        return dict

    monkeypatch.setattr(sglang_engine, "CustomAllReduceV2", made)
    cuda = torch.device("cuda", 0)
    chosen = sglang_engine.choose(theirs, "one host", cuda)
    assert "one host" == chosen(group="one host", device=cuda).group
    assert dict is sglang_engine.choose(theirs, "hosts", cuda)
    assert dict is sglang_engine.choose(theirs, "one host", torch.device("cpu"))
