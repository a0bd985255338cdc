"""What `bench.workbench` runs beside itself: filling the store, and the browser."""
