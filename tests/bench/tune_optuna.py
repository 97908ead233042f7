"""Compare the race of `servebench tune` with Optuna's TPE and Wilcoxon pruner, given the race's engine time.

    PYTHONPATH=tests python tests/bench/tune_optuna.py [--repetitions 200] [--seed 0]

Needs `pip install optuna`. A trial is a start of the engine with a candidate that TPE names; its steps are the blocks of a whole
point, which the pruner compares, pair by pair, with those of the best trial so far. The best trial is the pick, as Optuna's
users take it. Engines that do not start are failed trials. Prints the table of
`make calibrate ARGS="--only tune_table"` with one more method.
"""

from __future__ import annotations

import argparse
import math
import sys
from statistics import fmean

import optuna

from calibration.tuning import METHODS, POINT_BLOCKS, Chosen, SimulatedTune, tune_page


def tpe(study: SimulatedTune, budget_s: float) -> Chosen:
    """Return what TPE with the Wilcoxon pruner chooses in this engine time."""
    sampler = optuna.samplers.TPESampler(seed=study.seed % (1 << 31))
    pruner = optuna.pruners.WilcoxonPruner(p_threshold=0.1)
    search = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
    while study.spent_s < budget_s:
        trial = search.ask()
        name = trial.suggest_categorical("candidate", list(study.names))
        values: list[float] = []
        for block in range(POINT_BLOCKS):
            value, _ = study.block(name, f"tpe-{trial.number}", block)
            if value is None:
                break
            values.append(value)
            trial.report(value, block)
            if trial.should_prune():
                break
        state = optuna.trial.TrialState
        if values:
            search.tell(trial, fmean(values) if math.isfinite(fmean(values)) else None)
        else:
            search.tell(trial, state=state.FAIL)
    return Chosen(regret=study.regret(str(search.best_trial.params["candidate"])), seconds=study.spent_s)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    methods = {**METHODS, f"Optuna {optuna.__version__}: TPE, Wilcoxon pruner, same time": tpe}
    sys.stdout.write(tune_page(options.repetitions, options.seed, _say, methods))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
