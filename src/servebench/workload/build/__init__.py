"""What workloads build requests with: seeds, lengths, exact prompts, sessions."""
