"""Packets through ports, one event after another: plain Python that Numba can compile.

Times are whole picoseconds, so both ways give the same results to the last bit. One
heap holds the next event of every link and flow, as time * 2^21 + 4 * place + kind.

L links, F flows, P packets, G signals on their way back to senders (ACKs, CNPs, NAKs):
whole numbers, one column each; LF, I, J, GF: their floats; N nodes; R routes of flows;
Z states of congestion control, one after another, Y its parameters, X what it is told;
H the heap; S, D single numbers.

Signals take the latency of their way in a class of their own: they wait for nobody.
"""

from __future__ import annotations

from typing import Any

__all__ = ["FUNCTIONS", "kick", "run"]

HEAD, TAIL, QUEUED, BUSY, PAUSED, SRC, DST, LATE, HELD, EXTRA, ASKED, ROOM = range(12)
MARKS, PAUSES, DROPS, MOST, SENT_BYTES, FLY, FLY_LAST, DEAD, TX, RING, WAKE = range(
    12, 23
)
PS, KMIN, KMAX, LOSS = range(4)
USED, POOL = range(2)
NEXT, FLOW, SEQ, SIZE, HOP, MARK, ARRIVES, CAME, IS_EXTRA, BORN = range(10)
TOTAL, SENT, ACKED, GOT, HOPS, BACK, BOUND, AFTER, BEFORE, PACE, LISTED = range(11)
LAST_CNP, TIMER, FIRST, LAST, NAKED, HEARD, RTO_AT, TRIES, LEFT, ACTIVE = range(11, 21)
G_NEXT, G_AT, G_SEQ, G_BYTES, G_MARK, G_BORN, G_KIND = range(7)
PACKET, FREE, G_FREE, EVENTS, REAL, DONE, NOW, ACKS, CNP_PS, PAUSING = range(10)
SEED, HEAP, RTO, WIDTH, INT, COUNT, LEAST_FREE, G_LEAST, CC = range(10, 19)
SHARE, PMAX, SLOPE, OFFSET, INT_RTT = range(5)
RATE, WINDOW, WHEN = range(3)
ACK, CNP, NAK = range(3)
CODE = 1 << 21
TX_DONE, ARRIVAL, FLIP, WAKES = range(4)
SIGNAL, TIMES, TIMEOUT = range(3)
STOPPED, COMPLETED, STALLED, FULL = range(4)
MOST_TRIES = 20


def push(when: int, code: int, H: Any, S: Any) -> None:
    """Add an event."""
    key, child = when * CODE + code, S[HEAP]
    S[HEAP] += 1
    while child:
        parent = (child - 1) >> 1
        if H[parent] <= key:
            break
        H[child] = H[parent]
        child = parent
    H[child] = key


def pop(H: Any, S: Any) -> Any:
    """Take the first event."""
    first = H[0]
    S[HEAP] -= 1
    last = S[HEAP]
    key, hole = H[last], 0
    while 2 * hole + 1 < last:
        child = 2 * hole + 1
        if child + 1 < last and H[child + 1] < H[child]:
            child += 1
        if H[child] >= key:
            break
        H[hole] = H[child]
        hole = child
    H[hole] = key
    return first


def draw(S: Any) -> Any:
    """Return a random number from 0 to 1: the same sequence for the same seed."""
    S[SEED] = (S[SEED] * 1103515245 + 12345) & 0x7FFFFFFF
    return S[SEED] / 2147483648.0


def start(link: int, packet: int, x: Any) -> None:
    """Begin to send a packet on a link that is free."""
    L, LF, N, P, I, F, J, R, G, GF, Z, Y, X, H, S, D = x
    L[BUSY, link], L[TX, link] = 1, packet
    L[SENT_BYTES, link] += P[SIZE, packet]
    if S[INT]:
        at = 3 * P[HOP, packet]
        I[at, packet] = L[QUEUED, link]
        I[at + 1, packet] = L[SENT_BYTES, link]
        I[at + 2, packet] = S[NOW]
    took = int(P[SIZE, packet] * LF[PS, link] + 0.5)
    push(S[NOW] + took, 4 * link + TX_DONE, H, S)
    S[REAL] += 1


def serve(link: int, x: Any) -> None:
    """Send what is next on a link: what waits there, else what a flow has to send."""
    L, LF, N, P, I, F, J, R, G, GF, Z, Y, X, H, S, D = x
    if L[BUSY, link] or L[PAUSED, link] or L[DEAD, link]:
        return
    packet = L[HEAD, link]
    if packet >= 0:
        L[HEAD, link] = P[NEXT, packet]
        if L[HEAD, link] < 0:
            L[TAIL, link] = -1
        L[QUEUED, link] -= P[SIZE, packet]
        start(link, packet, x)
        return
    flow, first, soonest = L[RING, link], L[RING, link], -1
    while flow >= 0:
        size = min(S[PACKET], F[TOTAL, flow] - F[SENT, flow])
        out = F[SENT, flow] - F[ACKED, flow]
        if not S[ACKS] or out == 0 or out + size <= Z[flow * S[WIDTH] + WINDOW]:
            if F[PACE, flow] <= S[NOW]:
                inject(link, flow, size, x)
                return
            if soonest < 0 or F[PACE, flow] < soonest:
                soonest = F[PACE, flow]
        flow = F[AFTER, flow]
        if flow == first:
            break
    if soonest >= 0 and (L[WAKE, link] == 0 or soonest < L[WAKE, link]):
        L[WAKE, link] = soonest
        push(soonest, 4 * link + WAKES, H, S)
        S[REAL] += 1


def inject(link: int, flow: int, size: int, x: Any) -> None:
    """Make the next packet of a flow and send it; the flow behind it is next."""
    L, LF, N, P, I, F, J, R, G, GF, Z, Y, X, H, S, D = x
    packet = S[FREE]
    S[FREE] = P[NEXT, packet]
    S[LEAST_FREE] -= 1
    P[FLOW, packet], P[SEQ, packet], P[SIZE, packet] = flow, F[SENT, flow], size
    P[HOP, packet], P[MARK, packet], P[CAME, packet] = 0, 0, -1
    P[BORN, packet] = S[NOW]
    F[SENT, flow] += size
    rate = Z[flow * S[WIDTH] + RATE]
    if rate * LF[PS, link] < 1e6:  # slower than the link: bytes/us * ps/byte
        F[PACE, flow] = S[NOW] + int(size * 1e6 / rate)
    L[RING, link] = F[AFTER, flow]
    if F[SENT, flow] >= F[TOTAL, flow]:
        F[LEFT, flow] = S[NOW]
        unlist(link, flow, x)
    if S[RTO] and F[RTO_AT, flow] == 0:
        F[HEARD, flow] = S[NOW]
        F[RTO_AT, flow] = S[NOW] + S[RTO]
        push(F[RTO_AT, flow], 4 * (L.shape[1] + flow) + TIMEOUT, H, S)
        S[REAL] += 1
    start(link, packet, x)


def enlist(link: int, flow: int, x: Any) -> None:
    """Let a flow take part in the turns of its first link, as the last of the round."""
    L, LF, N, P, I, F, J, R, G, GF, Z, Y, X, H, S, D = x
    if F[LISTED, flow]:
        return
    F[LISTED, flow] = 1
    first = L[RING, link]
    if first < 0:
        L[RING, link] = F[AFTER, flow] = F[BEFORE, flow] = flow
        return
    last = F[BEFORE, first]
    F[AFTER, last], F[BEFORE, flow] = flow, last
    F[AFTER, flow], F[BEFORE, first] = first, flow


def unlist(link: int, flow: int, x: Any) -> None:
    """Take it out: it has nothing to send."""
    L, LF, N, P, I, F, J, R, G, GF, Z, Y, X, H, S, D = x
    F[LISTED, flow] = 0
    after, before = F[AFTER, flow], F[BEFORE, flow]
    if after == flow:
        L[RING, link] = -1
        return
    F[AFTER, before], F[BEFORE, after] = after, before
    if L[RING, link] == flow:
        L[RING, link] = after


def drop(packet: int, x: Any) -> None:
    """Forget a packet."""
    L, LF, N, P, I, F, J, R, G, GF, Z, Y, X, H, S, D = x
    P[NEXT, packet] = S[FREE]
    S[FREE] = packet
    S[LEAST_FREE] += 1


def admit(node: int, came: int, leaves: int, packet: int, x: Any) -> bool:
    """Give a packet room in a switch; pause the link that it came by if it must be."""
    L, LF, N, P, I, F, J, R, G, GF, Z, Y, X, H, S, D = x
    size, free = P[SIZE, packet], N[POOL, node] - N[USED, node]
    P[CAME, packet], P[IS_EXTRA, packet] = came, 0
    if not S[PAUSING]:
        if L[QUEUED, leaves] + size > free:
            L[DROPS, leaves] += 1
            return False
    elif L[HELD, came] + size > D[SHARE] * free:
        if L[EXTRA, came] + size > L[ROOM, came]:
            L[DROPS, came] += 1
            return False
        L[EXTRA, came] += size
        P[IS_EXTRA, packet] = 1
        if not L[ASKED, came]:
            L[ASKED, came] = 1
            L[PAUSES, came] += 1
            push(S[NOW] + L[LATE, came], 4 * came + FLIP, H, S)
            S[REAL] += 1
        return True
    L[HELD, came] += size
    N[USED, node] += size
    return True


def release(packet: int, node: int, x: Any) -> None:
    """Give the room back, and let a paused link go on when there is enough."""
    L, LF, N, P, I, F, J, R, G, GF, Z, Y, X, H, S, D = x
    came, size = P[CAME, packet], P[SIZE, packet]
    if P[IS_EXTRA, packet]:
        L[EXTRA, came] -= size
    else:
        L[HELD, came] -= size
        N[USED, node] -= size
    if L[ASKED, came] and not L[EXTRA, came]:
        few = 2 * S[PACKET]
        free = N[POOL, node] - N[USED, node]
        if L[HELD, came] <= few or L[HELD, came] + few <= D[SHARE] * free:
            L[ASKED, came] = 0
            push(S[NOW] + L[LATE, came], 4 * came + FLIP, H, S)
            S[REAL] += 1


def tx_done(link: int, x: Any) -> None:
    """Let a packet fly, and the next one be sent."""
    L, LF, N, P, I, F, J, R, G, GF, Z, Y, X, H, S, D = x
    packet = L[TX, link]
    L[BUSY, link] = 0
    P[ARRIVES, packet], P[NEXT, packet] = S[NOW] + L[LATE, link], -1
    if L[FLY, link] < 0:
        L[FLY, link] = packet
        push(P[ARRIVES, packet], 4 * link + ARRIVAL, H, S)
        S[REAL] += 1
    else:
        P[NEXT, L[FLY_LAST, link]] = packet
    L[FLY_LAST, link] = packet
    if P[CAME, packet] >= 0:
        release(packet, L[SRC, link], x)
    serve(link, x)


def arrive(link: int, x: Any) -> int:
    """Take a packet off a link: to its receiver, or into the queue of its next link."""
    L, LF, N, P, I, F, J, R, G, GF, Z, Y, X, H, S, D = x
    packet = L[FLY, link]
    L[FLY, link] = P[NEXT, packet]
    if L[FLY, link] >= 0:
        push(P[ARRIVES, L[FLY, link]], 4 * link + ARRIVAL, H, S)
        S[REAL] += 1
    if L[DEAD, link] or (LF[LOSS, link] > 0 and draw(S) < LF[LOSS, link]):
        L[DROPS, link] += 1
        drop(packet, x)
        return STOPPED
    flow, hop = P[FLOW, packet], P[HOP, packet] + 1
    if hop == F[HOPS, flow]:
        done = receive(packet, x)
        drop(packet, x)
        return done
    leaves = R[hop, flow]
    if L[DEAD, leaves] or not admit(L[DST, link], link, leaves, packet, x):
        L[DROPS, leaves] += L[DEAD, leaves]
        drop(packet, x)
        return STOPPED
    P[HOP, packet], P[NEXT, packet] = hop, -1
    queued = L[QUEUED, leaves]
    if queued > LF[KMIN, leaves]:
        chance = 1.0
        if queued <= LF[KMAX, leaves]:
            over = queued - LF[KMIN, leaves]
            chance = D[PMAX] * over / (LF[KMAX, leaves] - LF[KMIN, leaves])
        if chance >= 1.0 or draw(S) < chance:
            P[MARK, packet] = 1
            L[MARKS, leaves] += 1
    if L[HEAD, leaves] < 0:
        L[HEAD, leaves] = packet
    else:
        P[NEXT, L[TAIL, leaves]] = packet
    L[TAIL, leaves] = packet
    L[QUEUED, leaves] = queued + P[SIZE, packet]
    L[MOST, leaves] = max(L[MOST, leaves], L[QUEUED, leaves])
    serve(leaves, x)
    return STOPPED


def receive(packet: int, x: Any) -> int:
    """Count what came in order, tell the sender, and say whether a message is whole."""
    L, LF, N, P, I, F, J, R, G, GF, Z, Y, X, H, S, D = x
    flow, size = P[FLOW, packet], P[SIZE, packet]
    kind = ACK
    if P[SEQ, packet] <= F[GOT, flow]:
        F[GOT, flow] = max(F[GOT, flow], P[SEQ, packet] + size)
        F[NAKED, flow] = 0
    elif F[NAKED, flow]:
        kind = -1
    else:
        F[NAKED, flow], kind = 1, NAK
    if S[ACKS] and kind >= 0:
        tell(flow, kind, packet, x)
    if S[CNP_PS] and P[MARK, packet] and S[NOW] - F[LAST_CNP, flow] >= S[CNP_PS]:
        F[LAST_CNP, flow] = S[NOW]
        tell(flow, CNP, packet, x)
    if F[BOUND, flow] > 0 and F[GOT, flow] >= F[BOUND, flow]:
        S[DONE] = flow
        return COMPLETED
    return STOPPED


def tell(flow: int, kind: int, packet: int, x: Any) -> None:
    """Send word to a flow's sender: what came, marked or not, over which loads."""
    L, LF, N, P, I, F, J, R, G, GF, Z, Y, X, H, S, D = x
    word = S[G_FREE]
    S[G_FREE] = G[G_NEXT, word]
    S[G_LEAST] -= 1
    G[G_NEXT, word], G[G_AT, word] = -1, S[NOW] + F[BACK, flow]
    G[G_SEQ, word], G[G_BYTES, word] = F[GOT, flow], P[SIZE, packet]
    G[G_MARK, word], G[G_BORN, word] = P[MARK, packet], P[BORN, packet]
    G[G_KIND, word] = kind
    if S[INT]:
        most = tau = 0.0
        for hop in range(F[HOPS, flow]):
            at, link = 3 * hop, R[hop, flow]
            took = (I[at + 2, packet] - J[at + 2, flow]) / 1e6
            if took > 0 and J[at + 2, flow] > 0:
                sent = (I[at + 1, packet] - J[at + 1, flow]) / took
                least = min(I[at, packet], J[at, flow])
                load = (least / D[INT_RTT] + sent) * LF[PS, link] / 1e6
                if load > most:
                    most, tau = load, took
            for k in range(at, at + 3):
                J[k, flow] = I[k, packet]
        GF[0, word], GF[1, word] = most, tau
    if F[FIRST, flow] < 0:
        F[FIRST, flow] = word
        push(G[G_AT, word], 4 * (L.shape[1] + flow) + SIGNAL, H, S)
        S[REAL] += 1
    else:
        G[G_NEXT, F[LAST, flow]] = word
    F[LAST, flow] = word


def hear(flow: int, on_ack: Any, on_cnp: Any, on_loss: Any, x: Any) -> None:
    """Let a sender have the next word of its receiver, and go on."""
    L, LF, N, P, I, F, J, R, G, GF, Z, Y, X, H, S, D = x
    word = F[FIRST, flow]
    F[FIRST, flow] = G[G_NEXT, word]
    if F[FIRST, flow] >= 0:
        push(G[G_AT, F[FIRST, flow]], 4 * (L.shape[1] + flow) + SIGNAL, H, S)
        S[REAL] += 1
    kind, seq = G[G_KIND, word], G[G_SEQ, word]
    if kind != CNP and seq > F[ACKED, flow]:
        F[ACKED, flow], F[HEARD, flow], F[TRIES, flow] = seq, S[NOW], 0
    X[0], X[1], X[2] = S[NOW] / 1e6, G[G_BYTES, word], G[G_MARK, word]
    X[3] = (S[NOW] - G[G_BORN, word]) / 1e6
    X[4], X[5] = GF[0, word], GF[1, word]
    X[6], X[7] = F[ACKED, flow], F[SENT, flow]
    G[G_NEXT, word] = S[G_FREE]
    S[G_FREE] = word
    S[G_LEAST] += 1
    here = flow * S[WIDTH]
    state = Z[here : here + S[WIDTH]]
    rate, window = state[RATE], state[WINDOW]
    if kind == ACK:
        on_ack(state, Y, X)
    elif kind == CNP:
        on_cnp(state, Y, X)
    else:
        on_loss(state, Y, X)
        go_back(flow, seq, x)
    if D[SLOPE] > 0 and kind == ACK:
        begun = F[ACTIVE, flow]
        share = (F[ACKED, flow] - begun) / max(1, F[TOTAL, flow] - begun)
        factor = D[OFFSET] + D[SLOPE] * share
        if state[RATE] > rate:
            state[RATE] = rate + (state[RATE] - rate) * factor
        if state[WINDOW] > window:
            state[WINDOW] = window + (state[WINDOW] - window) * factor
    serve(R[0, flow], x)


def go_back(flow: int, seq: int, x: Any) -> None:
    """Send again from there on."""
    L, LF, N, P, I, F, J, R, G, GF, Z, Y, X, H, S, D = x
    if seq < F[SENT, flow]:
        F[SENT, flow] = seq
        enlist(R[0, flow], flow, x)


def time_out(flow: int, on_loss: Any, x: Any) -> int:
    """Go back when nothing was heard for long."""
    L, LF, N, P, I, F, J, R, G, GF, Z, Y, X, H, S, D = x
    F[RTO_AT, flow] = 0
    if F[ACKED, flow] >= F[SENT, flow]:
        return STOPPED
    due = F[HEARD, flow] + S[RTO]
    if due <= S[NOW]:
        F[TRIES, flow] += 1
        if F[TRIES, flow] > MOST_TRIES:
            S[DONE] = flow
            return STALLED
        F[HEARD, flow], F[NAKED, flow] = S[NOW], 0
        X[0], X[6], X[7] = S[NOW] / 1e6, F[ACKED, flow], F[SENT, flow]
        on_loss(Z[flow * S[WIDTH] : (flow + 1) * S[WIDTH]], Y, X)
        go_back(flow, F[ACKED, flow], x)
        serve(R[0, flow], x)
        due = S[NOW] + S[RTO]
    if F[RTO_AT, flow] == 0:
        F[RTO_AT, flow] = due
        push(due, 4 * (L.shape[1] + flow) + TIMEOUT, H, S)
        S[REAL] += 1
    return STOPPED


def arm(flow: int, x: Any) -> None:
    """Let congestion control's own timer run while there is something to send."""
    L, LF, N, P, I, F, J, R, G, GF, Z, Y, X, H, S, D = x
    when = Z[flow * S[WIDTH] + WHEN]
    if F[SENT, flow] < F[TOTAL, flow] and when < 1e9:
        F[TIMER, flow] = max(S[NOW] + 1, int(when * 1e6))
        push(F[TIMER, flow], 4 * (L.shape[1] + flow) + TIMES, H, S)
    else:
        F[TIMER, flow] = 0


def kick(flow: int, x: Any) -> None:
    """Let a flow that got more bytes go on."""
    L, LF, N, P, I, F, J, R, G, GF, Z, Y, X, H, S, D = x
    enlist(R[0, flow], flow, x)
    if F[TIMER, flow] == 0:
        here = flow * S[WIDTH] + WHEN
        Z[here] = max(Z[here], S[NOW] / 1e6)
        arm(flow, x)
    serve(R[0, flow], x)


def run(
    until: int, on_ack: Any, on_cnp: Any, on_timer: Any, on_loss: Any, x: Any
) -> int:
    """Go on until a message is whole, nothing happens any more, or that time."""
    L, LF, N, P, I, F, J, R, G, GF, Z, Y, X, H, S, D = x
    links = L.shape[1]
    while S[HEAP]:
        if S[REAL] == 0:
            return STALLED
        if S[LEAST_FREE] < 2 or S[G_LEAST] < 3 or S[HEAP] + 16 > H.shape[0]:
            return FULL
        if H[0] // CODE > until:
            S[NOW] = max(S[NOW], until)
            return STOPPED
        event = pop(H, S)
        due = event // CODE
        S[NOW] = max(S[NOW], due)  # a timer may have been due while all was still
        S[EVENTS] += 1
        place, kind = (event % CODE) >> 2, event & 3
        if place < links:
            S[REAL] -= 1
            if kind == TX_DONE:
                tx_done(place, x)
            elif kind == ARRIVAL:
                if arrive(place, x) == COMPLETED:
                    return COMPLETED
            elif kind == FLIP:
                L[PAUSED, place] = 1 - L[PAUSED, place]
                serve(place, x)
            elif L[WAKE, place] == S[NOW]:
                L[WAKE, place] = 0
                serve(place, x)
            continue
        flow = place - links
        if kind == SIGNAL:
            S[REAL] -= 1
            hear(flow, on_ack, on_cnp, on_loss, x)
        elif kind == TIMEOUT:
            S[REAL] -= 1
            if time_out(flow, on_loss, x) == STALLED:
                return STALLED
        elif F[TIMER, flow] == due:
            X[0] = S[NOW] / 1e6
            on_timer(Z[flow * S[WIDTH] : (flow + 1) * S[WIDTH]], Y, X)
            arm(flow, x)
            serve(R[0, flow], x)
    return STALLED


FUNCTIONS = (
    push, pop, draw, start, unlist, inject, serve, enlist, drop, admit, release,
    tx_done, tell, receive, arrive, go_back, hear, time_out, arm, kick, run,
)  # fmt: skip
"""In an order in which each comes after those that it calls."""
