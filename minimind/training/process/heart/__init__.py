"""The heartbeat: a lost rank, host or link ends the run everywhere, soon and with a sentence.

Beside each rank of a run of several runs a small process, its pulse (pulse.py): it looks whether the rank lives
(/proc, a pidfd), and every few seconds tells rank 0's pulse (listener.py) so. That one knows of each rank when it was
last heard (roll.py), answers, and tells all when one is lost; who gets no answer has lost rank 0. Then each pulse ends
its rank with exit code 1, and one a host says whom the run has lost, which checkpoint is the last and how to go on.

What a beat proves is that the rank's process exists, isn't stopped, and that the network between the hosts carries.
That is all: a rank that compiles, saves slowly or holds Python's lock for minutes beats, since its pulse is another
process; one that waits for ever is the watchdog's. Time that a pulse did not see pass counts for nothing; and
stopped ranks count only while others run, so a job that is suspended as a whole goes on when it is woken.

Contract with the network. Rank 0's pulse listens on one port of the address at which the ranks meet. It reads frames
of one size (beats.py) with a seal that takes the run's random key, and closes what sends anything else or is silent for
ten seconds; such strangers are sixteen at most. It answers nothing but sealed frames. The key comes to the ranks over
their own connections.

Known weakness: one pulse hears all ranks, some hundred beats a second at a thousand ranks; and whoever can read the
ranks' own traffic, which is not encrypted, can read the key.
"""
