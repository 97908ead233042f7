"""All that can make servebench run, send, read or write in a study's folder, and whether this user signed it.

`study.json` is signed together with `plan.json`, and `tune.json`, the manifests of runs and the prompts each by themselves.
Tables, logs, spools and the states of runs are not signed: they say what was measured, and name no program, address or folder.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servebench.store.layout import StudyFolder, check_plain
from servebench.store.manifest import read_signed_manifest, write_manifest
from servebench.store.plan import PlannedRun, read_plan_digest
from servebench.store.prompts import adopt_prompts, strange_prompts
from servebench.store.state import StudyState, read_signed_study, write_study
from servebench.store.tune import TuneState, is_tune, read_signed_tune, write_tune
from servebench.util.errors import StoreError

TUNE_WORD = "tune"


@dataclass(frozen=True, kw_only=True)
class SealedStudy:
    """A stored study as it was read once, so that what was checked is what is used.

    `doubt` says why not all of it is known to be this user's; null if it is. `here`: it was made in this folder. `manifests` and
    `prompts` are those that this user did not sign.
    """

    folder: StudyFolder
    state: StudyState
    plan: tuple[PlannedRun, ...]
    plan_digest: str
    tune: TuneState | None
    doubt: str | None
    here: bool
    manifests: Mapping[Path, Mapping[str, Any]]
    prompts: Sequence[Path]

    def adopt(self) -> None:
        """Sign all of it. Raises StoreError."""
        write_study(self.folder, self.state, adopted_plan=self.plan_digest)
        if self.tune is not None:
            write_tune(self.folder, self.tune, self.state)
        for path, manifest in self.manifests.items():
            write_manifest(path, manifest)
        adopt_prompts(self.folder.prompts)


def read_sealed(folder: StudyFolder) -> SealedStudy:
    """Return a stored study with why it may not be this user's. Raises StoreError."""
    check_plain(folder.path)
    plan, digest = read_plan_digest(folder)
    state, origin = read_signed_study(folder, digest)
    tune, of_tune = read_signed_tune(folder, state.scope) if is_tune(folder) else (None, origin)
    if tune is None and state.words[:1] == (TUNE_WORD,):
        raise StoreError(f"{folder.path} has no {folder.tune.name}, without which a tune cannot be continued")
    manifests = dict(_strange_manifests(folder, state, plan))
    prompts = strange_prompts(folder.prompts)
    doubt = origin.doubt
    if doubt is None and of_tune.doubt is not None:
        doubt = f"{folder.tune.name}: {of_tune.doubt}"
    elif doubt is None and (strange := [*manifests, *prompts]):
        doubt = f"{strange[0].relative_to(folder.path)} is not signed by you for this study"
    return SealedStudy(
        folder=folder,
        state=state,
        plan=plan,
        plan_digest=digest,
        tune=tune,
        doubt=doubt,
        here=origin.here,
        manifests=manifests,
        prompts=prompts,
    )


def _strange_manifests(
    folder: StudyFolder, state: StudyState, plan: Sequence[PlannedRun]
) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the manifests of runs that say something else than the plan and that this user did not sign for it. One that
    cannot be read says nothing."""
    planned = {run.name: run.config for run in plan}
    for name in state.runs:
        path = folder.run(name).manifest
        with suppress(StoreError):
            manifest, origin = read_signed_manifest(path)
            own, wanted = manifest["config"], planned.get(name)
            # how long the study goes on is read from its manifests
            fits = wanted is None or own.get("study") == wanted.get("study")
            if own != wanted and not (origin.own and fits):
                yield path, manifest
