"""The inference engine. So far: the door to the native module (``native``) and the registry of ops (``ops``)."""
