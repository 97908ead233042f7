import os
import signal
import threading

import pytest

from servebench.util.signals import defer_stop_signals


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_is_deferred():
    """The block is completed; several interrupts are delivered once after it."""
    done = []

    def work():
        with defer_stop_signals():
            interrupt()
            interrupt()
            done.append("inside")
        done.append("after")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["inside"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_is_not_lost_if_the_block_fails():

    def work():
        with defer_stop_signals():
            interrupt()
            raise ValueError("work")

    with pytest.raises(KeyboardInterrupt) as error:
        work()
    assert isinstance(error.value.__context__, ValueError)


def test_a_signal_without_a_handler_is_not_deferred():
    """It still ends the process, and the guard then stops the engine."""
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with defer_stop_signals():
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_outside_the_main_thread_nothing_changes():
    """Python delivers signals only to the main thread, which alone may set handlers."""
    seen = []

    def work():
        with defer_stop_signals():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
