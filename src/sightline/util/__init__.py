"""What every layer may use: files, names, devices, provenance."""
