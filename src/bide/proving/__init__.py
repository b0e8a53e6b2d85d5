"""Prove a store of one's own: processes that are killed use it, and their journals are checked.

`bide prove` is the command for it. `workload` is what each process does, `crew` starts and kills
the processes, `user_fault` runs the user's own fault, `backlog` fills the queue and reads what is
left, `run` is the whole of it, `proof` and `page` are the result.
"""
