"""Loading the kernels never holds up whoever asks for them to be loaded."""

import threading

from cordwood.batch import warmth


def test_asking_again_while_kernels_load_does_not_wait(monkeypatch):
    """The event loop asks with every first connection; the load takes seconds."""
    loading, go_on = threading.Event(), threading.Event()

    def load(_name):
        loading.set()
        assert go_on.wait(30)
        return warmth

    monkeypatch.setattr(warmth, "_loaded", None)
    monkeypatch.setattr(warmth, "_is_warming", False)
    monkeypatch.setattr(warmth.importlib, "import_module", load)
    warmth.warm_soon()
    assert loading.wait(30)
    second = threading.Thread(target=warmth.warm_soon)
    second.start()
    second.join(10)
    assert not second.is_alive()
    assert not warmth.is_warm()
    go_on.set()
    assert warmth.kernels() is warmth
