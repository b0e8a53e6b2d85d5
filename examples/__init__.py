"""Four small programs that use bide. Each folder has a README, a program and its tests."""
