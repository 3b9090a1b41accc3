"""What memory means to an engine: tensors, epochs of leases, reach over processes."""
