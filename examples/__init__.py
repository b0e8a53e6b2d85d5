"""Four small programs that use bide. Each directory has a README, a program and its tests."""
