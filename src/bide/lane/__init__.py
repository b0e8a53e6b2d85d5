"""The lane: batches the commands of threads and tasks for one engine, and has the threads."""
