"""The rules of a message: what each command does to it, as pure functions of data.

A rule takes the record of a message, a command and the facts of the queue, and returns a `Change`:
what the record is afterwards, and what is counted and remembered. It reads no store and no clock.
Memory and SQLite load records, ask the rules, and apply what they answer. The functions of Redis
(Lua) and PostgreSQL (SQL) have rules of the same names.

`decide` is the entry: it ends an expired lease first, checks the lease or version that the command
names, and lets a successor take the place of a message that a worker no longer holds.
"""
