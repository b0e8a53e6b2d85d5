"""A queue of several shards: what each of them is asked, and what their answers come to."""
