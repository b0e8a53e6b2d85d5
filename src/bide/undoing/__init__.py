"""Bulk changes that can be taken back.

Before a part of the messages is changed, a record of them is put into a queue of its own, due in
ten minutes. Then they are changed, each only if it still is as the record has it, and a second
message marks which were. What has a record and no mark is never restored: a process died between
the two, and a message that was not changed may have been delivered.
"""
