"""What bide costs, measured beside the raw limits of the same machine in the same run."""
