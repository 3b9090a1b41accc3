"""What DCQCN and TIMELY do by themselves: steps of their papers, one at a time."""

from dataclasses import replace

import numpy as np
import pytest

from stretto import network
from stretto.fabric import jit
from stretto.topology import load
from stretto.topology.traffic import Packets, Parcel
from stretto.topology.traffic.congestion import OWN

FAST = not jit.missing()
LINE, ROUND, PACKET = 12_500.0, 8.0, 1000.0


def begun(name):
    """Return a control, its parameters, and the state of a new flow of 100 Gb/s."""
    control = network.find(name)
    state = np.zeros(OWN + control.slots)
    state[:OWN] = LINE, np.inf, np.inf, LINE, ROUND, PACKET
    params = np.array([p.value for p in control.parameters])
    control.begin(state, params, np.zeros(8))
    return control, params, state


def test_timely_raises_as_soon_as_round_trips_get_shorter():
    """The newest change weighs 7/8: a queue that drains is not cut for having grown."""
    control, params, state = begun("timely")
    rates = []
    for at, took in enumerate((60.0, 100.0, 80.0)):
        control.on_ack(state, params, np.array([1e3 * at, 1e3, 0, took, 0, 0, 0, 0]))
        rates.append(state[0])

    assert LINE == rates[0]
    assert rates[1] < rates[0]
    assert rates[2] > rates[1]


@pytest.mark.parametrize("name", ["dcqcn", "timely"])
def test_no_rate_falls_below_one_in_a_hundred(name):
    """1 Gb/s of 100, however long the queue is and however many complain."""
    control, params, state = begun(name)
    for at in range(1000):
        told = np.array([1e3 * at, 1e3, 1, 1e4, 0, 0, 0, 0])
        control.on_ack(state, params, told)
        control.on_cnp(state, params, told)

    assert pytest.approx(LINE / 100) == state[0]


def test_dcqcn_recovers_while_there_is_nothing_to_send():
    """After 8 ms of silence a flow that was cut goes at line rate: its timers ran.

    Another flow goes on all the time, so that the network is never still.
    """
    machine = load("clos1x8")
    traffic = Packets(machine, network.find("dcqcn"), compiled=FAST)
    for i in range(4):
        traffic.send(Parcel(i, machine.route(i + 1, 0), 1e6), ready_us=0.0, queue=i)
    traffic.send(Parcel("on", machine.route(6, 7), 2e8), ready_us=0.0, queue=6)
    first = traffic.run_until(2000.0)
    traffic.send(Parcel("last", machine.route(1, 0), 1e6), ready_us=1e4, queue=0)
    found = {d.what: d.arrives_us for d in traffic.run_until(12_000.0)}

    assert 4 == len(first)
    assert 1e6 / LINE == pytest.approx(found["last"] - 1e4, rel=0.1)


def watched(control, heard):
    """Return a control that notes when each of its handlers is called."""

    def noting(handler):
        def call(state, params, told):
            heard.append(float(told[0]))
            handler(state, params, told)

        return call

    return replace(
        control,
        on_ack=noting(control.on_ack),
        on_cnp=noting(control.on_cnp),
        on_timer=noting(control.on_timer),
        on_loss=noting(control.on_loss),
    )


@pytest.mark.parametrize("name", network.names())
@pytest.mark.parametrize("silence_us", [20.0, 500.0, 40_000.0])
def test_no_control_is_told_of_a_time_that_is_over(name, silence_us):
    """Messages after a silence: whatever fires then, fires at the time that it is."""
    machine, heard = load("clos1x8"), []
    control = watched(network.find(name), heard)
    traffic = Packets(machine, control, compiled=False)
    ready = 0.0
    for _ in range(3):
        heard.clear()
        for i in range(4):
            parcel = Parcel(i, machine.route(i + 1, 0), 5e4)
            traffic.send(parcel, ready_us=ready, queue=i)
        arrived = [d.arrives_us for d in traffic.run_until(ready + 200.0)]

        assert 4 == len(arrived)
        assert not [at for at in heard if at < ready]
        assert heard == sorted(heard)
        ready += 200.0 + silence_us
