"""How ranks of one machine talk: messages in memory that both map, woken only when they sleep.

::

    rank 0 (writes)                     what both map                         rank 1 (reads)
    copies values into a free buffer -> arena of rank 0: buffer, buffer ...
    writes place and bytes ---------->  table in rank 1's arena: a mailbox
                                        for every tag                     --> spins on the mailbox, then sleeps
    rings if the table says "sleeps" -> doorbell of rank 1 (an eventfd)   --> wakes, maps the buffer once,
                                                                              reads values where they lie
    takes the buffer again <----------- buffer: FREE                      <-- when nobody there holds its memory

Who maps what: every rank makes one arena (``arena.py``), and maps those of its neighbours; descriptors are passed over
a socket (``neighbours.py``), which then opens tables of mailboxes (``mailboxes.py``) and shows who leaves. Who signals
whom: the writer the reader, by the mailbox; the reader the writer, by the buffer's state and by emptying the mailbox.
When a rank sleeps: after a spin of 2 ms at most (``spin.py``), and not at all while messages come sooner.
``endpoints.py`` is the two ends of one way, ``memory_group.py`` the sums of some ranks.

What each mechanism gains is what ``python tools/bench_runtime_peer.py --size small --without NAME`` prints: steps with
and without it, in turns in the same processes. How many times as long a step of 4 ms takes without it, on two cores,
over the three schedules::

    NAME         in its place            idle cores      ten other processes compute there too (1F1B alone)
    memory       gloo over loopback      1.43 to 2.17    0.85 to 1.47
    spin         sleep at once           1.12 to 1.21    0.93 to 0.96
    adaptation   a spin of 2 ms always   0.94 to 1.00    1.8 to 2.4 (processor time 1.9)
    allocator    glibc's own settings    0.90 to 0.99    1.2 to 1.35 (processor time 1.07); ``runtime/allocator.py``

Steps of 40 ms take 1.01 to 1.04 times as long without spin, 0.98 to 1.09 without allocator; where both ranks have one
core, 1.14 to 1.21 without adaptation. Which ranks are neighbours is no matter of speed but of safety: by a scan of its
sockets a machine is told from a clone, which has the same boot id.
"""
