"""The command line, python -m sinpe_ext: info, demo, plot, identify, export, build."""
