"""The inference engine's home. Nothing is built here yet: the probe and the gate come first."""
