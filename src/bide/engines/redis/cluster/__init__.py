"""A Redis Cluster: which node has which shard, and calls that find their way there."""
