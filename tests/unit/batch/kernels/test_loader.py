"""Loading the kernels never blocks the caller."""

import threading

from cordwood.batch.kernels import loader


def test_asking_again_while_kernels_load_does_not_wait(monkeypatch):
    """A second request during the load, which takes seconds, returns immediately."""
    loading, go_on = threading.Event(), threading.Event()

    def load(_name):
        loading.set()
        assert go_on.wait(30)
        return loader

    monkeypatch.setattr(loader, "_loaded", None)
    monkeypatch.setattr(loader, "_is_warming", False)
    monkeypatch.setattr(loader.importlib, "import_module", load)
    loader.load_kernels_soon()
    assert loading.wait(30)
    second = threading.Thread(target=loader.load_kernels_soon)
    second.start()
    second.join(10)
    assert not second.is_alive()
    assert not loader.kernels_ready()
    go_on.set()
    assert loader.kernels() is loader
