"""CIFAR in its four official forms, what is refused, and how it is fetched."""

import gzip
import hashlib
import http.server
import os
import pickle
import tarfile
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from skipinit.data import cifar, load
from skipinit.data.cifar import CIFAR10, CIFAR100, load_arrays, read_cifar
from skipinit.errors import DataError

REAL = Path(os.environ.get("SKIPINIT_DATA", "")) / "cifar-10-batches-bin"
needs_cifar10 = pytest.mark.skipif(
    not (os.environ.get("SKIPINIT_DATA") and REAL.is_dir()),
    reason="no cifar-10-batches-bin under SKIPINIT_DATA",
)


def small(official):
    """The set with 12 images a file, whose contents no checksum knows."""
    return replace(
        official,
        train=dict.fromkeys(official.train, 12),
        test=dict.fromkeys(official.test, 12),
        sha256={},
    )


def records(official, seed=0):
    """For each file, labels (12, columns) and pixels (12, 3072)."""
    generator = np.random.default_rng(seed)
    columns = len(official.label_keys)
    return {
        name: (
            generator.integers(official.num_classes, size=(12, columns)),
            generator.integers(256, size=(12, 3072), dtype=np.uint8),
        )
        for name in (*official.train, *official.test)
    }


def write_binary(official, contents, place):
    folder = place / official.forms[0].folder
    folder.mkdir(parents=True)
    for name, (labels, pixels) in contents.items():
        rows = np.concatenate([labels.astype(np.uint8), pixels], axis=1)
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
    return folder


def write_python(official, contents, place):
    folder = place / official.forms[1].folder
    folder.mkdir(parents=True)
    for name, (labels, pixels) in contents.items():
        batch = {b"data": pixels, b"filenames": [b"cat.png"] * len(pixels)}
        for column, key in enumerate(official.label_keys):
            batch[key.encode()] = labels[:, column].tolist()
        (folder / name).write_bytes(python2_pickle(batch))
    return folder


def python2_pickle(batch):
    """As Python 2 and the numpy of its day wrote it: the old module name, 0 and 1 for False and True."""
    raw = pickle.dumps(batch, protocol=2).replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")
    flags, old_flags = b"\x89\x88\x87", b"K\x00K\x01\x87"
    assert flags in raw
    return raw.replace(flags, old_flags)


def pack(official, number, folder):
    """Put the folder into its archive; the set, with that archive's checksum."""
    form = official.forms[number]
    archive = folder.parent / form.archive
    with tarfile.open(archive, "w:gz") as members:
        members.add(folder, arcname=folder.name)
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    forms = list(official.forms)
    forms[number] = replace(form, md5=hashlib.md5(archive.read_bytes()).hexdigest())
    return replace(official, forms=tuple(forms))


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """An empty folder that is searched first, and an empty cache."""
    monkeypatch.setenv("SKIPINIT_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(cifar, "BASE_URL", "http://127.0.0.1:9/")  # nobody answers there
    return tmp_path / "data"


@pytest.mark.parametrize("packed", [False, True], ids=["folder", "archive"])
@pytest.mark.parametrize("number", [0, 1], ids=["binary", "python"])
@pytest.mark.parametrize("official", [CIFAR10, CIFAR100], ids=["cifar10", "cifar100"])
def test_every_form_holds_the_same(official, number, packed, place):
    chosen, contents = small(official), records(official)
    folder = (write_binary, write_python)[number](chosen, contents, place)
    if packed:
        chosen = pack(chosen, number, folder)
    for split, files in zip(read_cifar(chosen), (chosen.train, chosen.test), strict=True):
        expected = np.concatenate([contents[name][1] for name in files])
        classes = np.concatenate([contents[name][0][:, -1] for name in files])
        assert split.images.shape == (12 * len(files), 3, 32, 32)
        assert split.images.dtype == np.uint8
        assert np.array_equal(split.images.reshape(-1, 3072), expected)
        assert np.array_equal(split.labels, classes)


def test_cache_is_searched_too(place, tmp_path):
    write_binary(CIFAR10, records(CIFAR10), tmp_path / "cache" / "skipinit")
    assert len(read_cifar(small(CIFAR10))[0].labels) == 60


@pytest.mark.parametrize("damage", ["short", "long", "missing"])
def test_truncated_or_missing_binary_file_is_named(damage, place):
    file = write_binary(CIFAR10, records(CIFAR10), place) / "data_batch_4.bin"
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes() + b"x" if damage == "long" else file.read_bytes()[:-1])
    with pytest.raises(DataError, match=f"{file}: (36,87[57] bytes, not 36,876|No such file)"):
        read_cifar(small(CIFAR10))


@pytest.mark.parametrize("keep", [0, 1, 100, 20_000, -1])
def test_truncated_pickle_is_named(keep, place):
    file = write_python(CIFAR10, records(CIFAR10), place) / "data_batch_2"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(DataError, match=f"{file}: not a readable CIFAR batch"):
        read_cifar(small(CIFAR10))


def test_pickle_of_another_shape_is_named(place):
    file = write_python(CIFAR10, records(CIFAR10), place) / "test_batch"
    file.write_bytes(pickle.dumps({"data": np.zeros((12, 3071), np.uint8), "labels": [0] * 12}))
    with pytest.raises(DataError, match=f"{file}: does not hold 12 images of 3072 bytes"):
        read_cifar(small(CIFAR10))


@pytest.mark.parametrize(("write", "label"), [(write_binary, 10), (write_python, 300), (write_python, -1)])
def test_label_out_of_range_is_named(write, label, place):
    contents = records(CIFAR10)
    contents["data_batch_3"][0][5] = label
    folder = write(CIFAR10, contents, place)
    with pytest.raises(DataError, match=rf"{folder}/data_batch_3(\.bin)?: label {label} is not in 0 … 9"):
        read_cifar(small(CIFAR10))


def test_flipped_bit_is_found_by_the_checksum(place):
    contents = records(CIFAR10)
    digests = {
        name: hashlib.sha256(np.concatenate([labels.astype(np.uint8), pixels], axis=1).tobytes()).hexdigest()
        for name, (labels, pixels) in contents.items()
    }
    folder = write_binary(CIFAR10, contents, place)
    checked = replace(small(CIFAR10), sha256=digests)
    read_cifar(checked)
    file = folder / "data_batch_5.bin"
    raw = bytearray(file.read_bytes())
    raw[1000] ^= 1
    file.write_bytes(raw)
    with pytest.raises(DataError, match=f"{file}: sha256 .* is damaged"):
        read_cifar(checked)


@pytest.mark.parametrize("number", [0, 1])
def test_truncated_or_foreign_archive_is_named(number, place):
    folder = (write_binary, write_python)[number](CIFAR10, records(CIFAR10), place)
    chosen = pack(small(CIFAR10), number, folder)
    archive = place / chosen.forms[number].archive
    archive.write_bytes(archive.read_bytes()[:-1])
    with pytest.raises(DataError, match=f"{archive}: md5 .* damaged"):
        read_cifar(chosen)
    archive.write_bytes(gzip.compress(b"something else"))
    with pytest.raises(DataError, match=f"{archive}: md5 .* damaged"):
        load("cifar10")


class Mkdir:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_malicious_pickle_is_refused_and_not_run(place, tmp_path):
    folder = write_python(CIFAR10, records(CIFAR10), place)
    attack = pickle.dumps({b"data": Mkdir(tmp_path / "owned"), b"labels": []}, protocol=2)
    (folder / "data_batch_1").write_bytes(attack)
    with pytest.raises(DataError, match=f"{folder}/data_batch_1: .*posix.mkdir"):
        read_cifar(small(CIFAR10))
    assert not (tmp_path / "owned").exists()
    pickle.loads(attack)
    assert (tmp_path / "owned").exists(), "the attack is a real one"


@pytest.mark.parametrize(
    "name",
    [
        "builtins.eval",
        "builtins.getattr",
        "os.system",
        "numpy.load",
        "numpy.core.multiarray.fromfile",
        "numpy.matrix",
    ],
)
def test_no_other_name_can_be_reached(name):
    module, attribute = name.rsplit(".", 1)
    with pytest.raises(pickle.UnpicklingError, match=f"asks for {name}"):
        load_arrays(f"c{module}\n{attribute}\n.".encode())


@pytest.mark.parametrize("protocol", range(2, 6))
def test_plain_pickles_of_any_protocol_are_read(protocol):
    value = {b"data": np.arange(12, dtype=np.uint8).reshape(3, 4), "names": [b"x", "y", 3, (1.5, None)]}
    found = load_arrays(pickle.dumps(value, protocol=protocol))
    assert np.array_equal(found[b"data"], value[b"data"])
    assert found["names"] == value["names"]


@pytest.mark.parametrize("array", [np.zeros(3), np.array([None, {}], dtype=object)], ids=["float", "object"])
def test_arrays_of_anything_but_bytes_are_refused(array):
    with pytest.raises(pickle.UnpicklingError, match="not of bytes"):
        load_arrays(pickle.dumps(array, protocol=2))


class Shelf(http.server.BaseHTTPRequestHandler):
    """Serves the one file it is given, or cuts the connection halfway."""

    content = b""
    cut = False

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        self.wfile.write(self.content[: len(self.content) // 2] if self.cut else self.content)

    def log_message(self, *_):
        pass


@pytest.fixture
def shelf(monkeypatch):
    handler = type("OneShelf", (Shelf,), {})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setattr(cifar, "BASE_URL", f"http://127.0.0.1:{server.server_port}/")
    yield handler
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def packed(tmp_path):
    """A small set and the bytes of its binary archive, which lies nowhere."""
    folder = write_binary(CIFAR10, records(CIFAR10), tmp_path / "elsewhere")
    chosen = pack(small(CIFAR10), 0, folder)
    return chosen, (tmp_path / "elsewhere" / chosen.forms[0].archive).read_bytes()


def test_missing_set_is_fetched_once(shelf, packed, place):
    chosen, shelf.content = packed
    images = read_cifar(chosen)[0].images
    assert [file.name for file in place.iterdir()] == ["cifar-10-binary.tar.gz"]
    shelf.content = b"gone"
    assert np.array_equal(read_cifar(chosen)[0].images, images)


def test_wrong_download_leaves_nothing(shelf, packed, place):
    chosen, content = packed
    shelf.content = content[:-1] + b"?"
    with pytest.raises(
        DataError, match=r"cifar-10-binary.tar.gz: what came does not have md5 .* nothing was kept"
    ):
        read_cifar(chosen)
    assert list(place.iterdir()) == []


def test_broken_download_leaves_nothing(shelf, packed, place):
    chosen, shelf.content = packed
    shelf.cut = True
    with pytest.raises(DataError, match=r"could not be fetched"):
        read_cifar(chosen)
    assert list(place.iterdir()) == []


def test_offline_says_where_it_looked_and_what_to_do(place, tmp_path):
    with pytest.raises(DataError) as caught:
        load("cifar100")
    message = str(caught.value)
    assert "\n" not in message
    for part in (str(place), str(tmp_path / "cache" / "skipinit"), "127.0.0.1:9/cifar-100-binary.tar.gz"):
        assert part in message


@needs_cifar10
def test_real_cifar10(place, monkeypatch):
    monkeypatch.setenv("SKIPINIT_DATA", str(REAL.parent))
    real = load("cifar10")
    assert real.train_images.shape == (50_000, 3, 32, 32)
    assert real.train_labels.bincount().tolist() == [5000] * 10
    assert real.test_labels.bincount().tolist() == [1000] * 10
    # As the python version's tutorials print them: frog, truck, truck, deer, … and cat, ship, ship, plane, …
    assert real.train_labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert real.test_labels[:4].tolist() == [3, 8, 8, 0]
    # The channel means everyone quotes: 0.4914, 0.4822, 0.4465.
    means = real.train_images.double().mean((0, 2, 3)) / 255
    torch.testing.assert_close(means, torch.tensor([0.4914, 0.4822, 0.4465]).double(), atol=5e-5, rtol=0)


@needs_cifar10
def test_real_cifar10_survives_the_python_form(place, monkeypatch):
    contents = {}
    for name in (*CIFAR10.train, *CIFAR10.test):
        rows = np.fromfile(REAL / f"{name}.bin", np.uint8).reshape(-1, 3073)
        contents[name] = rows[:, :1].astype(np.int64), np.ascontiguousarray(rows[:, 1:])
    write_python(CIFAR10, contents, place)
    train, test = read_cifar(CIFAR10)
    monkeypatch.setenv("SKIPINIT_DATA", str(REAL.parent))
    for found, expected in zip((train, test), read_cifar(CIFAR10), strict=True):
        assert np.array_equal(found.images, expected.images)
        assert np.array_equal(found.labels, expected.labels)
