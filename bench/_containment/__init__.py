"""The public set that `bench.containment` plays, and what an operator who reads its tool schemas would add to the draft."""
