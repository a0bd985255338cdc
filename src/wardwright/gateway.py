"""The gate. `govern` is pure: live serving, simulation, replay and the in-process policy all call it and nothing else."""
