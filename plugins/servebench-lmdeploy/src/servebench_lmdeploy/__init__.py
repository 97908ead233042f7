"""servebench engine plugin: LMDeploy, by the TurboMind or the PyTorch engine."""
