"""A random walk over the lives of queries, on real Spark.

A walk has locations, queries, checkpoints, savepoints and one or two drivers. Each step does one of
the operations that a user has, with random arguments. The oracle is the number of each row among
the rows of its key, and each row comes once: it follows from the input alone (`Feed`), and shares
no code with the library.

After each step a query either runs exactly, or the library has refused what was asked. A refusal is
an error of the library, and never of a start as the documentation says. After a refusal such a
start follows, which has to run exactly.
"""

from __future__ import annotations

import copy
import json
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.lives.driver import read_function_output
from tests.lives.feed import Feed, OutputRow
from tests.lives.process import DriverError, DriverProcess, HangError

STEPS = "\nThe steps:\n"
"""What parts the text of a fault from the steps that led to it."""

ZONES = ("UTC", "America/New_York", "Asia/Kolkata")
BACKENDS = ("heap", "rocksdb")
EPOCHS_OF_A_SHADOW_S = 90
TAKE_OVER_S = 90


class FaultError(AssertionError):
    """The library did something that it must not do."""


@dataclass
class Saved:
    """A checkpoint or savepoint, and how many files its state has seen."""

    path: str
    position: int
    parallelism: int
    anew: bool


@dataclass
class Place:
    """A location, as the model knows it."""

    path: Path
    directory: str | None
    parallelism: int
    sink: str
    out: Path
    anew: bool = False
    begin: int = 0
    """The position at which its rows in the output begin."""
    position: int = 0
    before: Counter[OutputRow] = field(default_factory=Counter)
    """What was in the output before these rows."""
    is_certain: bool = True
    """Whether the location is known to be at its position; else it may be further."""
    is_running: bool = False
    driver: int = 0
    backend: str = "rocksdb"
    is_function: bool = True
    """Whether the running query was started with a function that builds it."""
    has_begun: bool = False
    needs_new_output: bool = False
    has_unsaid_void: bool = False
    """Whether only the next epoch says to the sink which epochs are void."""
    was_killed: bool = False
    checkpoints: list[Saved] = field(default_factory=list)
    kept: dict[str, Place] = field(default_factory=dict)
    query: str = ""
    query_id: str = ""
    """By which Spark knows its runs; a copy of the location has the same one."""

    @property
    def name(self) -> str:
        return self.path.name


class Walk:
    """One walk; a seed decides all of it.

    Parameters
    ----------
    base
        An empty directory for everything.
    seed
        Of all that is random.
    """

    def __init__(self, base: Path, seed: int) -> None:
        self.seed = seed
        self.trace: list[str] = []
        self.done: Counter[str] = Counter()
        self.checked: Counter[str] = Counter()
        """How often what was compared with the model."""
        self._base = base
        self._chance = random.Random(seed)
        self._feed = Feed(base / "input")
        self._places: list[Place] = []
        self._savepoints: list[Saved] = []
        self._drivers: dict[int, DriverProcess] = {}
        self._numbers: Counter[str] = Counter()

    def run(self, steps: int) -> None:
        """Take steps, then start every location once more.

        Raises
        ------
        FaultError
            If the library did something wrong; the error has all steps.
        """
        try:
            self._add_files(2)
            self._step("new", self._new_location)
            for _ in range(steps):
                possible = [each for each in _STEPS if each.is_possible(self)]
                (chosen,) = self._chance.choices(possible, [each.weight for each in possible])
                self._step(chosen.name, chosen.take.__get__(self))
            for place in list(self._places):
                self._step("last start", lambda place=place: self._start_as_told(place))
        except (FaultError, HangError) as exc:
            steps_so_far = "\n".join(self.trace)
            raise FaultError(f"seed {self.seed}: {exc}{STEPS}{steps_so_far}") from exc
        finally:
            for driver in self._drivers.values():
                driver.kill()

    def _step(self, name: str, take: Callable[[], None]) -> None:
        self.done[name] += 1
        self._note(f"{sum(self.done.values())}. {name}")
        try:
            take()
        except DriverError as exc:
            raise FaultError(f"{name} raises {exc}") from exc

    def _note(self, text: str) -> None:
        self.trace.append(text)

    # What is there

    def _driver(self, number: int) -> DriverProcess:
        if number not in self._drivers:
            work = self._base / f"driver-{self._number('driver')}"
            zone = self._chance.choice(ZONES)
            self._note(f"   driver {number} begins in {zone}: {work.name}")
            self._drivers[number] = DriverProcess(work, zone)
        return self._drivers[number]

    def _number(self, what: str) -> int:
        self._numbers[what] += 1
        return self._numbers[what]

    def _fresh(self, what: str) -> Path:
        return self._base / f"{what}-{self._number(what)}"

    def _running(self) -> list[Place]:
        return [place for place in self._places if place.is_running]

    def _stopped(self) -> list[Place]:
        return [place for place in self._places if not place.is_running]

    def _steady(self) -> list[Place]:
        """Stopped, and known to be at their position."""
        return [place for place in self._stopped() if place.is_certain and place.has_begun]

    def _present(self, saved: list[Saved]) -> list[Saved]:
        return [each for each in saved if (Path(each.path) / "_metadata").exists()]

    # Steps

    def _new_location(self) -> None:
        chance = self._chance
        place = Place(
            path=self._fresh("location"),
            directory=str(self._fresh("checkpoints")) if chance.random() < 0.3 else None,
            parallelism=chance.choice((1, 2, 3)),
            sink=chance.choice(("file", "file", "function")),
            out=self._fresh("out"),
            backend=chance.choice(BACKENDS),
        )
        self._places.append(place)
        self._start_as_told(place)

    def _add(self) -> None:
        self._add_files(self._chance.randint(1, 3))

    def _add_files(self, number: int) -> None:
        for _ in range(number):
            self._feed.add(self._chance)

    def _process(self) -> None:
        self._settle(self._chance.choice(self._running()))

    def _start(self) -> None:
        self._start_as_told(self._chance.choice(self._stopped()))

    def _start_otherwise(self) -> None:
        """Start with something changed, which may be refused."""
        place = self._chance.choice(self._steady())
        what = self._chance.choice(sorted(_CHANGES))
        changes = _CHANGES[what](self, place)
        if changes is None:
            return
        self._note(f"   {place.name}: {what} {changes}")
        if place.needs_new_output and "out" not in changes:
            changes["out"] = self._fresh("out")
        if self._try_to_start(place, changes):
            self._settle(place)
        else:
            self.done[f"refused: {what}"] += 1
            self._start_as_told(place)

    def _other_directory(self, place: Place) -> dict[str, Any]:
        return {
            "directory": self._chance.choice(
                (
                    str(self._fresh("checkpoints")),
                    str(place.path / "inside"),
                    str(place.path / "pyspark_ckpt"),
                    f"{place.directory or place.path}/../{self._fresh('checkpoints').name}",
                )
            )
        }

    def _used_output(self, place: Place) -> dict[str, Any] | None:
        used = [out for out in self._base.glob("out-*") if (out / "_spark_metadata").exists()]
        if place.sink == "function" or not used:
            return None
        return {"out": self._chance.choice(sorted(used))}

    def _spelling(self, place: Place) -> dict[str, Any]:
        form = self._chance.choice(("file:{}", "{}/", "file://{}", "{}/../" + place.name))
        return {"location": form.format(place.path)}

    def _link(self, place: Place) -> dict[str, Any]:
        link = self._fresh("link")
        link.symlink_to(place.path)
        return {"location": str(link)}

    def _other_sink(self, place: Place) -> dict[str, Any]:
        sink = "file" if place.sink == "function" else "function"
        return {"sink": sink, "out": self._fresh("out")}

    def _restore_in_vain(self, _: Place) -> dict[str, Any] | None:
        """Name a savepoint, which a location with epochs does not need."""
        present = self._present(self._savepoints)
        return {"restore": self._chance.choice(present).path} if present else None

    def _stop(self) -> None:
        place = self._chance.choice(self._running())
        if self._chance.random() < 0.5:
            self._settle(place)
        answer = self._driver(place.driver).call("stop", name=place.query)
        if answer["is_active"]:
            raise FaultError(f"{place.name} is active after stop()")
        self._has_ended(place)

    def _has_ended(self, place: Place) -> None:
        place.is_running = False
        place.is_certain = place.is_certain and place.position == self._feed.end
        self._note(f"   {place.name} ended at {place.position}, certain: {place.is_certain}")

    def _stop_with_savepoint(self) -> None:
        place = self._chance.choice(self._running())
        if self._chance.random() < 0.5:
            self._settle(place)
        drain = self._chance.random() < 0.2
        path = self._driver(place.driver).call(
            "stop_with_savepoint",
            name=place.query,
            directory=str(self._base / "savepoints"),
            drain=drain,
        )
        low = place.position
        self._has_ended(place)
        place.position = self._position_in_output(place, low)
        place.is_certain = True
        self._savepoints.append(self._saved(place, path))
        self._check_stored(self._savepoints[-1])
        if drain:
            self._note(f"   {place.name} was drained and ends for good")
            self._places.remove(place)

    def _position_in_output(self, place: Place, low: int) -> int:
        """Return up to where the output goes; only whole files, each row once."""
        found = self._read_output(place)
        for position in range(low, self._feed.end + 1):
            if found == place.before + self._feed.rows(place.begin, position):
                return position
        raise FaultError(f"{place.name}: the output is of no position from {low}: {sorted(found)}")

    def _checkpoint(self) -> None:
        place = self._chance.choice(self._running())
        self._settle(place)
        taken = self._driver(place.driver).call("checkpoint", name=place.query)
        place.checkpoints.append(self._saved(place, taken["path"]))
        self._note(f"   {place.name}: {taken['path']} at {place.position}")
        self._check_stored(place.checkpoints[-1])

    def _savepoint(self) -> None:
        place = self._chance.choice(self._running())
        self._settle(place)
        path = self._driver(place.driver).call(
            "savepoint",
            name=place.query,
            directory=str(self._base / "savepoints"),
            format=self._chance.choice(("CANONICAL", "NATIVE")),
        )
        self._savepoints.append(self._saved(place, path))
        self._note(f"   {place.name}: {path} at {place.position}")
        self._check_stored(self._savepoints[-1])

    def _saved(self, place: Place, path: str) -> Saved:
        return Saved(path, place.position, place.parallelism, place.anew)

    def _check_stored(self, saved: Saved) -> None:
        found = self._driver(0).call("stored", path=saved.path)
        if found != self._feed.counts(saved.position):
            raise FaultError(f"{saved} has {found}, not {self._feed.counts(saved.position)}")
        self.checked["state"] += 1

    def _can_roll_back(self) -> list[Place]:
        return [each for each in self._stopped() if self._present(each.checkpoints)]

    def _roll_back(self) -> None:
        place = self._chance.choice(self._can_roll_back())
        target = self._chance.choice(self._present(place.checkpoints))
        before = copy.deepcopy(place)
        if self._chance.random() < 0.2:
            self._check_input_is_needed(place, target)
        kept = self._rolled_back(place, Path(target.path).name)
        self._note(f"   {place.name} is back at {target.position}; kept: {kept}")
        place.checkpoints = []
        place.kept[kept] = before
        if place.sink == "function":  # which the documentation lets leave out void epochs
            rows = place.before + self._feed.rows(place.begin, self._feed.end)
            place.before = self._feed.before(rows.elements(), target.position)
            place.has_unsaid_void = True
        else:
            place.needs_new_output = True
        place.begin = place.position = target.position
        place.parallelism, place.anew = target.parallelism, target.anew
        place.is_certain = True

    def _rolled_back(self, place: Place, to: str) -> str:
        kept: str = self._driver(place.driver).call(
            "rollback",
            location=str(place.path),
            to=to,
            directory=place.directory,
            force=place.was_killed,
        )
        place.was_killed = False
        return kept

    def _check_input_is_needed(self, place: Place, target: Saved) -> None:
        """Go back over a file that is gone, which has to be refused; then put it back."""
        to_come = range(target.position, place.position)
        if not to_come or any(each.position <= to_come[-1] for each in self._running()):
            return
        gone = self._chance.choice(to_come)
        self._note(f"   input file {gone} is gone")
        self._feed.hide(gone)
        try:
            kept = self._rolled_back(place, Path(target.path).name)
        except DriverError as exc:
            if not exc.is_ours or f"{gone:05}.json" not in exc.text:
                raise
            self.done["refused: input is gone"] += 1
        else:
            raise FaultError(f"{place.name}: rolled back over input that is gone; kept: {kept}")
        finally:
            self._feed.show(gone)

    def _can_undo(self) -> list[Place]:
        return [each for each in self._stopped() if each.kept]

    def _undo(self) -> None:
        place = self._chance.choice(self._can_undo())
        if not place.has_begun:
            return
        name = self._chance.choice(sorted(place.kept))
        before = copy.deepcopy(place)
        kept = self._rolled_back(place, name)
        former = place.kept.pop(name)
        self._note(f"   {place.name} is again what {name} has, at {former.position}")
        for each in ("parallelism", "sink", "out", "anew", "begin", "position", "before"):
            setattr(place, each, getattr(former, each))
        for each in ("is_certain", "checkpoints", "needs_new_output", "backend"):
            setattr(place, each, getattr(former, each))
        place.kept[kept] = before
        if place.sink == "function":
            place.has_unsaid_void = True

    def _fork(self) -> None:
        """Start a query from a savepoint or a checkpoint of any location."""
        chance = self._chance
        retained = [saved for each in self._places for saved in each.checkpoints]
        source = chance.choice(self._present(self._savepoints + retained))
        place = Place(
            path=self._fresh("location"),
            directory=str(self._fresh("checkpoints")) if chance.random() < 0.3 else None,
            parallelism=chance.choice((source.parallelism, 1, 2, 3)),
            sink=chance.choice(("file", "file", "function")),
            out=self._fresh("out"),
            begin=source.position,
            position=source.position,
            anew=source.anew,
        )
        claim = "CLAIM" if chance.random() < 0.2 else "NO_CLAIM"
        if claim == "CLAIM" and source not in self._savepoints:
            claim = "NO_CLAIM"
        self._places.append(place)
        if not self._try_to_start(place, {"restore": source.path, "claim": claim}):
            # Retention removes a checkpoint of a query that runs, also while a fork reads it.
            if source in self._savepoints or (Path(source.path) / "_metadata").exists():
                raise FaultError(f"{place.name} cannot be started: {self.trace[-1]}")
            self._places.remove(place)
            self.done["refused: subsumed"] += 1
            return
        self._settle(place)
        if claim == "CLAIM":
            self._savepoints.remove(source)

    def _rescale(self) -> None:
        place = self._chance.choice(self._running())
        number = place.parallelism % 4 + 1
        try:
            self._driver(place.driver).call("rescale", name=place.query, parallelism=number)
        except DriverError as exc:
            if place.is_function or not exc.is_ours:
                raise
            self._note(f"   refused: {exc}")
        else:
            self._note(f"   {place.name}: {place.parallelism} -> {number} subtasks")
            place.parallelism = number
        self._settle(place)

    def _restart(self) -> None:
        place = self._chance.choice(self._running())
        spec = self._spec(place)
        spec["anew"] = not place.anew
        try:
            self._driver(place.driver).call("restart", name=place.query, spec=spec)
        except DriverError as exc:
            if not exc.is_ours or not place.anew:  # a state less may be refused
                raise
            self._note(f"   refused: {exc}")
        else:
            place.anew, place.is_function = not place.anew, True
        self._settle(place)

    def _shadow(self) -> None:
        place = self._chance.choice(self._running())
        self._settle(place)
        driver = self._driver(place.driver)
        driver.call("shadow", name=place.query, spec=self._spec(place))
        self._add_files(2)
        self._settle(place)
        deadline = time.monotonic() + EPOCHS_OF_A_SHADOW_S
        while True:
            report = driver.call("shadow_report", name=place.query)
            if report["epochs"] >= 1 and report["is_equal"]:
                break
            if not report["is_active"] or time.monotonic() > deadline:
                raise FaultError(f"the shadow of {place.name} found {report}")
            time.sleep(0.1)
        if self._chance.random() < 0.5:
            driver.call("discard", name=place.query)
            self._settle(place)
            return
        driver.call("promote", name=place.query, directory=str(self._base / "savepoints"))
        place.is_function = True
        self._settle(place)

    def _live(self) -> None:
        place = self._chance.choice(self._running())
        self._settle(place)
        wanted: dict[str, int | None] = {**self._feed.counts(place.position), "nobody": None}
        found = self._driver(place.driver).call("live", name=place.query, keys=sorted(wanted))
        if found != wanted:
            raise FaultError(f"a live read of {place.name} finds {found}, not {wanted}")

    def _fail_function(self) -> None:
        """Let the function of a sink fail once."""
        place = self._chance.choice([e for e in self._running() if e.sink == "function"])
        self._settle(place)
        driver = self._driver(place.driver)
        driver.call("fail_next", name=place.query)
        self._add_files(1)
        ended = driver.call("ended", name=place.query)
        if ended["is_active"] or ended["raised"] is None or ended["exception"] is None:
            raise FaultError(f"{place.name}: its function failed, and it says {ended}")
        self._has_ended(place)

    def _stop_session(self) -> None:
        """Stop a session without its queries, and make another one."""
        number = self._chance.choice(sorted(self._drivers))
        driver = self._drivers[number]
        driver.call("stop_session")
        for place in self._running():
            if place.driver == number:
                ended = driver.call("ended", name=place.query)
                is_told = ended["is_over"] or ended["raised"] is not None
                if ended["is_active"] or not is_told:
                    raise FaultError(f"{place.name}: its session was stopped, it says {ended}")
                self._has_ended(place)
        driver.call("session", zone=self._chance.choice(ZONES))

    def _kill(self) -> None:
        number = self._chance.choice(sorted(self._drivers))
        if self._chance.random() < 0.5:
            self._add_files(2)
        self._drivers.pop(number).kill()
        for place in self._running():
            if place.driver == number:
                place.was_killed = True
                self._has_ended(place)

    def _take_over(self) -> None:
        """Start a query that another driver runs."""
        place = self._chance.choice(self._running())
        former, query = place.driver, place.query
        self._settle(place)
        place.driver = 1 - former
        if not self._try_to_start(place, {}):
            self.done["refused: take over"] += 1
            place.driver, place.query, place.is_running = former, query, True
            self._settle(place)
            return
        self._add_files(1)
        queries = {former: query, place.driver: place.query}
        survivor = self._survivor(queries)
        if survivor == former:
            # It had written the offsets of the next epoch first, and Spark's log decides.
            place.driver, place.query = former, query
        try:
            if survivor is not None:
                self._settle(place)
                return
        except DriverError as exc:
            self._note(f"   the survivor ends, too: {exc}")
            self._check_has_failed(place.driver, place.query)
        # The former driver was fenced after it had written the epoch into the sink's log, where the
        # other one met it. The next start finds it there.
        self.done["both ended: take over"] += 1
        self._has_ended(place)
        self._start_as_told(place)

    def _check_has_failed(self, driver: int, query: str) -> None:
        ended = self._driver(driver).call("ended", name=query)
        if ended["is_active"] or ended["raised"] is None:
            raise FaultError(f"the driver that lost its query to another one says {ended}")

    def _survivor(self, queries: dict[int, str]) -> int | None:
        """Return which driver runs on, of two that run one query; ``None`` if both have failed."""
        deadline = time.monotonic() + TAKE_OVER_S
        while True:
            active = [
                number
                for number, query in queries.items()
                if self._driver(number).call("is_active", name=query)
            ]
            if len(active) == 1:
                break
            if not active:
                break
            if time.monotonic() > deadline:
                raise FaultError(f"of two drivers of one query, {active} run on")
            time.sleep(0.1)
        for loser in queries.keys() - set(active):
            self._check_has_failed(loser, queries[loser])
        return active[0] if active else None

    def _copy(self) -> None:
        """Copy a location, and start the copy."""
        original = self._chance.choice(self._steady())
        place = copy.deepcopy(original)
        place.path = self._fresh("location")
        shutil.copytree(original.path, place.path, symlinks=True)
        place.kept, place.checkpoints, place.out = {}, [], self._fresh("out")
        place.begin, place.before, place.needs_new_output = place.position, Counter(), False
        if self._try_to_start(place, {}):
            self._places.append(place)
            self._settle(place)
        else:
            self.done["refused: copy"] += 1

    def _move(self) -> None:
        """Rename a location; if it cannot start there, name it as before."""
        place = self._chance.choice([e for e in self._stopped() if e.has_begun])
        former, place.path = place.path, self._fresh("location")
        former.rename(place.path)
        for each in [place, *place.kept.values()]:
            for saved in each.checkpoints:
                saved.path = saved.path.replace(f"{former}/", f"{place.path}/")
        changes = {"out": self._fresh("out")} if place.needs_new_output else {}
        if self._try_to_start(place, changes):
            self._settle(place)
            return
        self.done["refused: move"] += 1
        for saved in place.checkpoints:
            saved.path = saved.path.replace(f"{place.path}/", f"{former}/")
        place.path.rename(former)
        place.path = former
        self._start_as_told(place)

    def _drop_local_copies(self) -> None:
        number = self._chance.choice(sorted(self._drivers))
        if not any(place.driver == number for place in self._running()):
            self._drivers[number].call("drop_local_copies")

    # How a query is started and checked

    def _start_as_told(self, place: Place) -> None:
        """Start as the documentation says, which must not be refused, and check the output."""
        if place.is_running:
            self._settle(place)
            return
        changes: dict[str, Any] = {"out": self._fresh("out")} if place.needs_new_output else {}
        self._stop_running_copy(place, changes)
        if not self._try_to_start(place, changes):
            raise FaultError(f"{place.name} cannot be started: {self.trace[-1]}")
        self._settle(place)

    def _stop_running_copy(self, place: Place, changes: Mapping[str, Any]) -> None:
        """Stop what was copied from a location, or it from: Spark has one run of an id."""
        metadata = place.path / "metadata"  # a rollback gives the location another id
        query_id = json.loads(metadata.read_text())["id"] if metadata.exists() else None
        for each in self._running():
            if each.query_id == query_id and each.driver == place.driver:
                if self._try_to_start(place, changes):
                    raise FaultError(f"{place.name} was started beside its copy {each.name}")
                self._settle(each)
                self._driver(each.driver).call("stop", name=each.query)
                self._has_ended(each)
                return

    def _try_to_start(self, place: Place, changes: Mapping[str, Any]) -> bool:
        """Start a query; return whether the library took it."""
        chance = self._chance
        wanted = copy.copy(place)
        for name in ("directory", "parallelism", "backend", "sink", "out", "anew"):
            if name in changes:
                setattr(wanted, name, changes[name])
        wanted.is_function = chance.random() < 0.7
        wanted.query = f"query-{self._number('query')}"
        has_other_output = wanted.out != place.out
        before = self._read_output(wanted) if has_other_output else place.before
        spec = self._spec(wanted) | {
            "options": self._options(wanted),
            "restore": changes.get("restore"),
            "claim": changes.get("claim"),
        }
        spec["location"] = changes.get("location", spec["location"])
        spec["has_failing_listener"] = chance.random() < 0.1
        self._note(f"   start {spec}")
        try:
            wanted.query_id = self._driver(place.driver).call("start", spec=spec)["id"]
        except DriverError as exc:
            if not exc.is_ours:
                raise FaultError(f"the start of {place.name} raises {exc}") from exc
            self._note(f"   refused: {exc}")
            return False
        if "parallelism" in changes and wanted.is_function:
            wanted.parallelism = place.parallelism  # a function is built with that of the location
        if has_other_output:
            wanted.before, wanted.begin = before, place.position
        wanted.is_running, wanted.has_begun, wanted.needs_new_output = True, True, False
        wanted.was_killed = False
        vars(place).update(vars(wanted))
        return True

    def _spec(self, place: Place) -> dict[str, Any]:
        return {
            "name": place.query,
            "location": str(place.path),
            "source": str(self._feed.path),
            "at_once": self._chance.choice((1, 1, 2)),
            "parallelism": place.parallelism,
            "anew": place.anew,
            "is_function": place.is_function,
            "sink": place.sink,
            "out": str(place.out),
        }

    def _options(self, place: Place) -> dict[str, str]:
        chance = self._chance
        options = {
            "state.backend.type": place.backend,
            "execution.checkpointing.interval": chance.choice(("100ms", "1s", "10min")),
            "execution.checkpointing.num-retained": str(chance.choice((1, 2, 3))),
            "internal.execution.checkpointing.data-inline-threshold": chance.choice(("0b", "20kb")),
            "internal.state.changelog.materialize.max-segments": str(chance.choice((2, 10))),
        }
        if place.directory is not None:
            options["execution.checkpointing.dir"] = place.directory
        return options

    def _settle(self, place: Place) -> None:
        """Let a running query process all that is there; then its output is exactly that."""
        if place.has_unsaid_void:
            self._add_files(1)
        end = self._feed.end
        self._driver(place.driver).call("process", name=place.query)
        found = self._read_output(place)
        wanted = place.before + self._feed.rows(place.begin, end)
        if found != wanted:
            missing, surplus = sorted((wanted - found).elements()), sorted(found - wanted)
            raise FaultError(
                f"{place.name}: {place.out.name} lacks {missing} and has {surplus} besides"
            )
        self.checked["output"] += 1
        place.position, place.is_certain, place.has_unsaid_void = end, True, False

    def _read_output(self, place: Place) -> Counter[OutputRow]:
        if place.sink == "function":
            return read_function_output(place.out)
        if not (place.out / "_spark_metadata").exists():
            return Counter()
        rows = self._driver(place.driver).call("output", out=str(place.out))
        return Counter((key, n, row_id) for key, n, row_id in rows)


@dataclass(frozen=True)
class _Step:
    name: str
    weight: int
    take: Callable[[Walk], None]
    is_possible: Callable[[Walk], Any]


_CHANGES: dict[str, Callable[[Walk, Place], dict[str, Any] | None]] = {
    "directory": Walk._other_directory,
    "no directory": lambda _, place: {"directory": None},
    "fresh output": lambda walk, place: {"out": walk._fresh("out")},
    "used output": Walk._used_output,
    "parallelism": lambda _, place: {"parallelism": place.parallelism % 3 + 1},
    "backend": lambda _, place: {"backend": "heap" if place.backend == "rocksdb" else "rocksdb"},
    "spelling": Walk._spelling,
    "link": Walk._link,
    "sink": Walk._other_sink,
    "restore": Walk._restore_in_vain,
    "program": lambda _, place: {"anew": not place.anew},
}
"""What a start is given otherwise; ``None`` if it cannot be now."""

_STEPS = (
    _Step("new location", 2, Walk._new_location, lambda walk: len(walk._places) < 4),
    _Step("add files", 6, Walk._add, lambda _: True),
    _Step("process", 5, Walk._process, Walk._running),
    _Step("start", 8, Walk._start, Walk._stopped),
    _Step("start otherwise", 8, Walk._start_otherwise, Walk._steady),
    _Step("stop", 6, Walk._stop, Walk._running),
    _Step("stop with savepoint", 3, Walk._stop_with_savepoint, Walk._running),
    _Step("checkpoint", 8, Walk._checkpoint, Walk._running),
    _Step("savepoint", 3, Walk._savepoint, Walk._running),
    _Step("roll back", 8, Walk._roll_back, Walk._can_roll_back),
    _Step("undo", 5, Walk._undo, Walk._can_undo),
    _Step(
        "fork",
        4,
        Walk._fork,
        lambda walk: (
            len(walk._places) < 5
            and walk._present(
                walk._savepoints + [each for place in walk._places for each in place.checkpoints]
            )
        ),
    ),
    _Step("rescale", 4, Walk._rescale, Walk._running),
    _Step("restart with another program", 3, Walk._restart, Walk._running),
    _Step(
        "shadow",
        1,
        Walk._shadow,
        lambda walk: walk._running(),
    ),
    _Step("live read", 3, Walk._live, Walk._running),
    _Step(
        "fail in the function",
        3,
        Walk._fail_function,
        lambda walk: any(each.sink == "function" for each in walk._running()),
    ),
    _Step("stop the session", 2, Walk._stop_session, lambda walk: walk._drivers),
    _Step("kill", 3, Walk._kill, lambda walk: walk._drivers),
    _Step("take over", 1, Walk._take_over, Walk._running),
    _Step("copy", 2, Walk._copy, lambda walk: len(walk._places) < 5 and walk._steady()),
    _Step("move", 2, Walk._move, lambda walk: any(e.has_begun for e in walk._stopped())),
    _Step("drop local copies", 1, Walk._drop_local_copies, lambda walk: walk._drivers),
)
