"""The compiled libraries: how they are built, cached and loaded, and which one serves a device."""
