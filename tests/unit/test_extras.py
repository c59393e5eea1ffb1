"""The command that adds an extra runs the installer of this environment."""

import sys

import pytest

from cordwood.extras import _installer, install_command


@pytest.fixture
def tools(tmp_path):
    """A directory with a ``pip`` and a ``uv``."""
    for name in ("pip", "uv"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def test_an_activated_environment_uses_its_pip(tools):
    """Where ``pip`` on PATH is beside this Python, the short form is right."""
    environ = {"PATH": str(tools)}
    assert _installer(str(tools / "python"), environ, has_pip=True) == "pip install"


def test_another_python_s_pip_is_not_used(tools):
    """Where ``pip`` is another environment's, or there is none, this Python is named."""
    for path in (str(tools), "/nowhere"):
        command = _installer("/my app/bin/python", {"PATH": path}, has_pip=True)
        assert command == "'/my app/bin/python' -m pip install"


def test_an_environment_of_uv_uses_uv(tools):
    """An environment without pip is told of uv, if there is one."""
    environ = {"PATH": str(tools)}
    command = _installer("/venv/bin/python", environ, has_pip=False)
    assert command == "uv pip install --python /venv/bin/python"
    assert "-m pip" in _installer("/venv/bin/python", {"PATH": "/nowhere"}, has_pip=False)


def test_the_command_names_the_extra():
    """The extra is quoted, as shells expand brackets."""
    assert install_command("jdk").endswith('pip install "cordwood[jdk]"') or (
        install_command("jdk").endswith(f'{sys.executable} "cordwood[jdk]"')
    )
