"""Pointers in a ConfigMap: conflicts, what the server has, and what the settings require."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_ckpt.errors import ConfigurationError, CorruptFileError, FencedError
from pyspark_ckpt.history.records import CompletedCheckpoint
from pyspark_ckpt.settings import HighAvailability, Settings
from pyspark_ckpt.storage.open import LocalStorage, Storage
from pyspark_ckpt.stores.kubernetes import KubernetesPointers, namespace_of_driver
from pyspark_ckpt.stores.open import find_store, open_store, store_of
from tests.faults.epochs import QUERY_ID, Epochs, restored_epoch
from tests.servers.kubernetes_api import ConfigMaps, write_kubeconfig
from tests.unit.without_library import check_advice

NAME = "pyspark-ckpt-x"


def test_conflicts_are_tried_again_and_nothing_is_lost(kubernetes: ConfigMaps) -> None:
    """Another client changes the ConfigMap between reading and writing, three times."""
    pointers = KubernetesPointers("jobs", NAME)
    pointers.claim()
    kubernetes.conflicts = 3
    pointers.reserve(1)
    pointers.put(1, "here")
    assert kubernetes.answered.count(("PUT", 409)) == 3
    assert (pointers.ids(), pointers.last_id()) == ([1], 1)
    stored = kubernetes.maps["jobs", NAME]
    assert stored["data"]["completed.1"] == "here"
    assert stored["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "pyspark-ckpt"}


@pytest.mark.parametrize("change", ["reserve", "put", "delete"])
def test_a_driver_that_is_overtaken_between_reading_and_writing_is_fenced(
    kubernetes: ConfigMaps, change: str
) -> None:
    first, second = (KubernetesPointers("jobs", NAME) for _ in range(2))
    first.claim()
    first.reserve(1)
    first.put(1, "here")
    kubernetes.before_put = second.claim
    changes = {
        "reserve": lambda: first.reserve(2),
        "put": lambda: first.put(2, "there"),
        "delete": lambda: first.delete(1),
    }
    with pytest.raises(FencedError, match="another driver"):
        changes[change]()
    second.check()
    assert (second.ids(), second.last_id()) == ([1], 1)


def test_two_first_drivers_at_once_leave_one(kubernetes: ConfigMaps) -> None:
    """Both find no ConfigMap; the second one's is there when the first makes its own."""
    first, second = (KubernetesPointers("jobs", NAME) for _ in range(2))
    read = first._read
    first._read = lambda: None if not kubernetes.maps and second.claim() is None else read()
    first.claim()
    first.check()
    assert ("POST", 409) in kubernetes.answered
    with pytest.raises(FencedError):
        second.check()


def test_labels_and_annotations_of_others_stay(kubernetes: ConfigMaps) -> None:
    pointers = KubernetesPointers("jobs", NAME)
    pointers.claim()
    metadata = kubernetes.maps["jobs", NAME]["metadata"]
    metadata["labels"]["team"] = "a"
    metadata["annotations"] = {"note": "b"}
    pointers.reserve(1)
    metadata = kubernetes.maps["jobs", NAME]["metadata"]
    assert metadata["labels"]["team"] == "a"
    assert metadata["annotations"] == {"note": "b"}


def test_a_deleted_config_map_fences_its_driver(kubernetes: ConfigMaps) -> None:
    pointers = KubernetesPointers("jobs", NAME)
    pointers.claim()
    kubernetes.maps.clear()
    with pytest.raises(FencedError):
        pointers.reserve(1)
    assert not kubernetes.maps


def test_the_note_names_namespace_and_config_map(
    storage: LocalStorage, kubernetes: ConfigMaps
) -> None:
    """Who has no settings finds the store; a changed note is refused before any request."""
    epochs = Epochs(storage)
    runner = epochs.runner(high_availability_type=HighAvailability.KUBERNETES)
    epochs.commit()
    taken = runner.take(epochs.committed_epoch, periodic=False)
    assert isinstance(taken, CompletedCheckpoint)
    store = find_store(storage)
    assert store.ids() == [taken.checkpoint_id]
    assert restored_epoch(store, storage, taken.checkpoint_id) == taken.epoch
    assert list(kubernetes.maps) == [("jobs", f"pyspark-ckpt-{QUERY_ID}")]
    note = storage.root / "stores" / "1"
    for wrong in ("../x", "jobs/../../secrets/y", "jobs", ""):
        note.write_text(f'{{"type": "kubernetes", "node": "{wrong}"}}')
        asked = len(kubernetes.answered)
        with pytest.raises(CorruptFileError, match="upgrade"):
            find_store(storage)
        assert len(kubernetes.answered) == asked


def test_the_namespace_is_that_of_the_setting_else_of_the_driver(kubernetes: ConfigMaps) -> None:
    assert namespace_of_driver() == "jobs"
    kind = HighAvailability.KUBERNETES
    assert store_of(Settings(high_availability_type=kind), "q").node == "jobs/pyspark-ckpt-q"
    settings = Settings(high_availability_type=kind, kubernetes_namespace="other")
    assert store_of(settings, "q").node == "other/pyspark-ckpt-q"


def test_a_server_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_kubeconfig(tmp_path / "config", "http://127.0.0.1:1")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with pytest.raises(OSError, match=f"ConfigMap {NAME} in the namespace jobs.*API server"):
        KubernetesPointers("jobs", NAME)


def test_without_a_server_it_says_where_to_run(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    settings = Settings(high_availability_type=HighAvailability.KUBERNETES)
    with pytest.raises(ConfigurationError, match="KUBECONFIG"):
        open_store(storage, settings, QUERY_ID)


@pytest.mark.slow
def test_without_its_library_it_says_what_to_install() -> None:
    check_advice(
        "kubernetes",
        "kubernetes",
        "from pyspark_ckpt.stores.kubernetes import KubernetesPointers",
        "KubernetesPointers('jobs', 'x')",
    )
