"""servebench scorer plugin: a language model as judge, HumanEval in a sandbox, ROUGE and lm-evaluation-harness."""
