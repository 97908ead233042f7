"""Where prompts come from: data sets, synthesized prose, schemas, traces."""
