"""Your own images: tables of labels, class folders, maps, transforms, and what is refused."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import mtlkit
from mtlkit.cli import main
from mtlkit.data import DataError, load_dataset, notes
from mtlkit.data.images import ImagePreprocessing, Images
from mtlkit.errors import MissingExtraError, SpecError
from mtlkit.tasks import NO_LABEL

pandas = pytest.importorskip("pandas", reason="pandas is in mtlkit[table]")
pytest.importorskip("torchvision", reason="torchvision is in mtlkit[vision]")
from PIL import Image  # noqa: E402  # comes with torchvision

SIZE = (24, 36)  # height, width
TARGETS = "{breed: classification, age: regression}"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MTLKIT_DATA", raising=False)
    monkeypatch.setattr(notes, "printed", set())


def write_pictures(count: int = 30, folder: str = "photos") -> "pandas.DataFrame":
    """Pictures whose red channel is the column, and whose green channel tells their number."""
    Path(folder).mkdir(parents=True)
    rows = []
    for index in range(count):
        pixels = np.zeros((*SIZE, 3), dtype=np.uint8)
        pixels[..., 0] = np.arange(SIZE[1])
        pixels[..., 1] = index
        Image.fromarray(pixels).save(f"{folder}/{index}.png")
        rows.append({"name": f"{index}.png", "breed": "abc"[index % 3], "age": 1.5 * index})
    frame = pandas.DataFrame(rows)
    frame.to_csv("labels.csv", index=False)
    return frame


def load(options: str = "", targets: str = TARGETS, **more):
    extra = f", {options}" if options else ""
    spec = f"images(folder=photos, labels=labels.csv, file=name, targets={targets}{extra})"
    return load_dataset(spec, **more)


def raw(picture: torch.Tensor) -> torch.Tensor:
    """Pixels of 0 to 255, from an input that was normalized by ImageNet's statistics."""
    mean = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
    std = torch.tensor([0.229, 0.224, 0.225])[:, None, None]
    return 255 * (picture * std + mean)


def test_a_table_names_the_images_and_their_labels():
    frame = write_pictures()
    frame.loc[4, "breed"] = None
    frame.to_csv("labels.csv", index=False)
    data = load("size=None")
    assert (len(data.train), len(data.val), len(data.test)) == (18, 6, 6)
    assert data.input_shape == (3, *SIZE)
    breed, age = data.tasks
    assert breed.classes == ("a", "b", "c")
    seen = []
    for split in (data.train, data.val, data.test):
        for picture, targets in split:
            number = round(float(raw(picture)[1].mean()))
            seen.append(number)
            expected = NO_LABEL if number == 4 else number % 3
            assert targets["breed"] == expected
            years = targets["age"] * age.deviations[0] + age.means[0]
            torch.testing.assert_close(years, torch.tensor([1.5 * number]))
    assert sorted(seen) == list(range(30))
    batch, targets = next(iter(data.loader("train", 6, num_workers=0)))
    assert batch.shape == (6, 3, *SIZE)
    assert targets["age"].shape == (6, 1)


def test_the_column_of_names_is_found_and_suffixes_may_be_missing(capsys):
    frame = write_pictures(10)
    spec = f"images(folder=photos, labels=labels.csv, targets={TARGETS}, size=32)"
    load_dataset(spec)
    assert "column 'name' names the images" in capsys.readouterr().err
    frame["name"] = [name.removesuffix(".png") for name in frame["name"]]
    frame.to_csv("labels.csv", index=False)
    with pytest.raises(DataError, match="file="):
        load_dataset(spec)
    assert len(load("size=32").train) == 6
    frame["name"] = frame["name"].replace("3", "33")
    frame.to_csv("labels.csv", index=False)
    with pytest.raises(DataError, match=r"images are not in the folder .*photos or .*: '33'"):
        load("size=32")


def test_a_second_table_names_the_images_to_test_on():
    frame = write_pictures(20)
    frame[:15].to_csv("labels.csv", index=False)
    later = frame[15:].copy()
    later.to_csv("later.csv", index=False)
    data = load("size=16, test_labels=later.csv")
    assert (len(data.train), len(data.val), len(data.test)) == (12, 3, 5)
    assert [path.stem for path in data.test.paths] == ["15", "16", "17", "18", "19"]
    later.loc[16, "breed"] = "d"
    later.to_csv("later.csv", index=False)
    with pytest.raises(DataError, match=r"test file also holds 'd'"):
        load("size=16, test_labels=later.csv")


@pytest.mark.parametrize(("size", "told"), [("224", True), ("64", False), ("None", False)])
def test_small_images_that_are_enlarged_by_much_are_reported(size, told, capsys):
    write_pictures()
    load(f"size={size}")
    assert ("enlarged to 224 x 224" in capsys.readouterr().err) is told


def test_images_on_both_sides_of_a_split_are_reported(capsys):
    frame = write_pictures(10)
    pandas.concat([frame] * 3).to_csv("labels.csv", index=False)
    load("size=16")
    assert "are in more than one of train, val and test" in capsys.readouterr().err


@pytest.mark.parametrize("parts", [False, True])
def test_folders_are_classes(parts):
    for part in ("train", "Val", "test") if parts else ("",):
        for label in ("cat", "dog"):
            write_pictures(8, str(Path("photos") / part / label))
    data = load_dataset("images(folder=photos, size=16)")
    (task,) = data.tasks
    assert (task.name, task.kind, task.classes) == ("label", "classification", ("cat", "dog"))
    assert len(data.train) == (16 if parts else 10)
    for split, name in ((data.train, "train"), (data.val, "Val"), (data.test, "test")):
        for index, path in enumerate(split.paths):
            assert split[index][1]["label"] == ("cat", "dog").index(path.parts[-2])
            assert not parts or path.parts[-3] == name
    renamed = load_dataset(
        "images(folder=photos, size=16, targets={pet: binary(column=label, yes=cat)})"
    )
    assert renamed.task_names == ("pet",)


def test_images_without_labels_or_in_a_mess_are_refused():
    write_pictures(6)
    with pytest.raises(DataError, match="have no labels"):
        load_dataset("images(folder=photos)")
    with pytest.raises(SpecError, match=r"needs targets.*name, breed, age"):
        load_dataset("images(folder=photos, labels=labels.csv)")
    write_pictures(6, "photos/cat")
    with pytest.raises(DataError, match="some are not"):
        load_dataset("images(folder=photos)")
    Path("none").mkdir()
    with pytest.raises(DataError, match="has no images"):
        load_dataset("images(folder=none)")
    with pytest.raises(DataError, match="there is no folder"):
        load_dataset("images(folder=nowhere)")


def write_maps(count: int = 30) -> None:
    """A picture's map is known by the picture: class = column // 12, depth = 1 + column, normals left."""
    for kind in ("masks", "depths", "normals"):
        Path(kind).mkdir()
    columns = np.broadcast_to(np.arange(SIZE[1]), SIZE)
    for index in range(count):
        mask = (columns // 12).astype(np.uint8)
        mask[0] = 255
        Image.fromarray(mask).save(f"masks/{index}.png")
        Image.fromarray(((1 + columns) * 1000).astype(np.uint16)).save(f"depths/{index}.png")
        normals = np.zeros((*SIZE, 3), dtype=np.float32)
        normals[..., 0] = np.linspace(-1, 1, SIZE[1])
        normals[..., 2] = 1 - np.abs(normals[..., 0])
        np.save(f"normals/{index}.npy", normals)


MAPS = (
    "{road: segmentation(classes=3, folder=masks), depth: depth(folder=depths, unit=0.001), "
    "n: normals(folder=normals)}"
)


def test_maps_have_the_names_of_their_images_and_follow_them():
    write_pictures(20)
    write_maps(20)
    Path("masks/7.png").unlink()
    spec = f"images(folder=photos, targets={MAPS}, size=None, augment=flip)"
    data = load_dataset(spec)
    assert data.task_names == ("road", "depth", "n")
    flips = 0
    for epoch in range(3):
        data.train.set_epoch(epoch)
        for picture, targets in data.train:
            columns = raw(picture)[0].round()
            flips += bool(columns[0, 0] > 0)
            number = round(float(raw(picture)[1].mean()))
            expected = torch.full(SIZE, NO_LABEL) if number == 7 else (columns // 12).long()
            expected[0] = NO_LABEL
            assert torch.equal(targets["road"], expected)
            torch.testing.assert_close(targets["depth"][0], 1 + columns)
            # a flip turns normals to the other side
            sideways = (2 * columns / (SIZE[1] - 1) - 1) * (-1 if columns[0, 0] > 0 else 1)
            torch.testing.assert_close(targets["n"][0], sideways, atol=1e-5, rtol=0)
    assert 0 < flips < 3 * len(data.train)
    with pytest.raises(SpecError, match="changes what depth and normals mean"):
        load_dataset(spec.replace("augment=flip", "augment=flip+crop"))


@pytest.mark.parametrize("augment", ["crop(scale=0.4)+flip", "'RandomRotation(degrees=40)'"])
def test_a_mask_stays_on_its_image_whatever_is_done_to_both(augment):
    write_pictures(12)
    write_maps(12)
    targets = "{road: segmentation(classes=3, folder=masks)}"
    data = load_dataset(f"images(folder=photos, targets={targets}, size=[48, 72], augment={augment})")
    unknown = 0
    for picture, found in data.train:
        columns = raw(picture)[0]
        inside = (found["road"] >= 0) & ((columns % 12 - 6).abs() < 4)  # not next to a border
        assert inside.sum() > 300
        assert torch.equal(found["road"][inside], (columns[inside] // 12).long())
        unknown += int((found["road"] < 0).sum())
    assert unknown > 0


@pytest.mark.parametrize("fit", ["stretch", "crop", "pad"])
def test_images_of_other_proportions_are_fitted(fit):
    write_pictures(10)
    write_maps(10)
    targets = "{road: segmentation(classes=3, folder=masks)}"
    data = load_dataset(f"images(folder=photos, targets={targets}, size=48, fit={fit})")
    picture, found = data.train[0]
    assert picture.shape == (3, 48, 48)
    assert found["road"].shape == (48, 48)
    columns = raw(picture)[0]
    if fit == "stretch":
        assert columns[24, 0] < 1
        assert columns[24, -1] > 34
    elif fit == "crop":  # 36 columns of which the middle 24 are left
        assert 5 < columns[24, 0] < 7
        assert 28 < columns[24, -1] < 31
    else:
        assert (found["road"][0] == NO_LABEL).all()
        torch.testing.assert_close(picture[:, 0], torch.zeros(3, 48), atol=0.02, rtol=0)
        assert (found["road"][24] >= 0).all()


def test_augmentation_depends_on_seed_epoch_and_sample_alone():
    write_pictures(12)
    options = "size=16, augment=crop+flip+color"
    data = load(options)
    first = [picture for picture, _ in data.train]
    again = load(options)
    state = torch.get_rng_state()
    for index in reversed(range(len(first))):
        assert torch.equal(again.train[index][0], first[index])
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(torch.equal(load(options, seed=1).train[0][0], picture) for picture in first)
    again.train.set_epoch(1)
    assert not torch.equal(again.train[0][0], first[0])
    assert torch.equal(data.val[0][0], again.val[0][0])
    from_workers = torch.cat([x for x, _ in data.loader("train", 4, shuffle=False, num_workers=2)])
    assert torch.equal(from_workers, torch.stack(first))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("size=[8]", "height, width"),
        ("size=0", "1 or more"),
        ("mean=[red, green, blue]", "each a number"),
        ("std=[1, 1, 0]", "above 0"),
        ("augment=flop", "did you mean 'flip'"),
        ("augment=flip(p=1)", "option of augment=flip"),
        ("augment=crop(scale=0)", "scale of augment=crop must be above 0 and at most 1, not 0"),
        ("augment=color(strength=-1)", "strength of augment=color must be 0 or more, not -1"),
        ("augment='RandomRotation()'", "torchvision rejects it"),
        ("augment='TenCrop(size=8)'", "cannot be applied"),
        ("mean=[0.5]", "1 numbers for 3 channel"),
        ("fit=squeeze", "fit"),
        ("channels=2", "channels"),
    ],
)
def test_wrong_options_are_named_before_training(options, message):
    write_pictures(10)
    with pytest.raises(SpecError, match=message):
        load(options)


@pytest.mark.parametrize(
    ("module", "package"), [("pandas", "pandas"), ("torchvision", "torchvision"), ("PIL", "pillow")]
)
def test_a_missing_package_names_both_extras(module, package, monkeypatch):
    write_pictures(6)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=package) as refused:
        load()
    assert "pip install 'mtlkit[vision,table]'" in str(refused.value)


@pytest.mark.parametrize("wrong", [{"size": 0}, {"std": [1, 1, 0]}, {"val_share": 3}])
def test_the_class_rejects_what_its_config_string_rejects(wrong):
    write_pictures(10)
    with pytest.raises(SpecError, match=f"{next(iter(wrong))} of images"):
        Images(folder=Path("photos"), labels="labels.csv", **wrong)


def test_gray_images_have_one_channel():
    write_pictures(10)
    data = load("size=32, channels=1, mean=[0.5], std=[0.5]")
    assert data.train[0][0].shape == data.input_shape == (1, 32, 32)
    model = mtlkit.create_architecture(
        data.complete_architecture("hard_sharing(backbone=timm.test_resnet)"), data.tasks
    )
    assert model(torch.stack([data.train[0][0]] * 2))["breed"].shape == (2, 3)


def test_what_is_wrong_with_a_file_is_known_before_training():
    write_pictures(10)
    path = Path("photos/3.png")
    good = path.read_bytes()
    path.write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"3\.png: cannot identify"):
        load()
    path.write_bytes(good[:70])
    with pytest.raises(DataError, match=r"3\.png"):
        load("check=pixels, size=16")
    Image.fromarray(np.zeros(SIZE, dtype=np.uint16)).save(path)
    with pytest.raises(DataError, match=r"3\.png has mode I;16"):
        load()
    Image.fromarray(np.zeros((5, 7, 3), dtype=np.uint8)).save(path)
    with pytest.raises(DataError, match=r"3\.png is 5 x 7.*24 x 36.*size="):
        load("size=None")
    assert len(load("size=16").train) == 6


def test_what_is_wrong_with_a_mask_is_known_before_training():
    frame = write_pictures(10)
    write_maps(10)
    frame["mask"] = [f"masks/{name}" for name in frame["name"]]
    frame.loc[0, "mask"] = None
    frame.to_csv("labels.csv", index=False)
    targets = "{road: segmentation(classes=3, column=mask), age: regression}"
    data = load("size=32", targets)
    assert data.default_architecture == "smp(encoder=timm.resnet18, vectors=[age])"
    path = Path("masks/3.png")
    Image.fromarray(np.zeros((5, 7), dtype=np.uint8)).save(path)
    with pytest.raises(DataError, match=r"3\.png of task 'road' is 5 x 7.*photos.3\.png is 24 x 36"):
        load("size=32", targets)
    Image.fromarray(np.zeros((*SIZE, 3), dtype=np.uint8)).save(path)
    with pytest.raises(DataError, match=r"3\.png has mode RGB"):
        load("size=32", targets)
    Image.fromarray(np.full(SIZE, 9, dtype=np.uint8)).save(path)
    with pytest.raises(DataError, match=r"3\.png holds 9.*classes 0 to 2, and 255"):
        load("size=32, check=pixels", targets)
    path.unlink()
    with pytest.raises(DataError, match=r"1 of .* maps of 'road' are not in the folder"):
        load("size=32", targets)


def test_a_network_that_does_not_fit_is_refused():
    write_pictures(10)
    write_maps(10)
    spec = "images(folder=photos, targets={road: segmentation(classes=3, folder=masks)}, size=%s)"
    with pytest.raises(SpecError, match=r"multiples of 32; set size=\[32, 64\]"):
        _ = load_dataset(spec % "[40, 60]").default_architecture
    data = load_dataset(spec % 32)
    with pytest.raises(SpecError, match="road is a map"):
        data.complete_architecture("mmoe")
    fixed = load("size=48").complete_architecture("hard_sharing(backbone=timm.test_vit)")
    assert "img_size=(48, 48)" in fixed


def test_the_exif_orientation_is_applied():
    write_pictures(10)
    exif = Image.Exif()
    exif[0x0112] = 6  # held by its right side
    for index in range(10):
        with Image.open(f"photos/{index}.png") as image:
            image.save(f"photos/{index}.png", exif=exif)
    data = load("size=None")
    assert data.input_shape == (3, SIZE[1], SIZE[0])
    rows = raw(data.train[0][0])[0].mean(dim=1)
    torch.testing.assert_close(rows, torch.arange(36.0), atol=0.01, rtol=0)


def test_maps_and_labels_are_learned_by_one_network():
    frame = write_pictures(10)
    write_maps(10)
    frame["mask"] = [f"masks/{name}" for name in frame["name"]]
    frame.to_csv("labels.csv", index=False)
    targets = "{breed: classification, road: segmentation(classes=3, column=mask)}"
    data = load("size=32", targets)
    spec = data.complete_architecture("smp(encoder=timm.test_resnet, decoder=fpn)")
    model = mtlkit.create_architecture(spec, data.tasks, method="rotograd")
    inputs, targets = next(iter(data.loader("train", 4)))
    predictions = model(inputs)
    assert predictions["breed"].shape == (4, 3)
    assert predictions["road"].shape == (4, 3, 32, 32)
    losses = {
        task.name: task.measure(predictions[task.name], targets[task.name])[0] for task in data.tasks
    }
    model.method.total(losses).backward()
    assert all(p.grad is not None for p in model.task_parameters("breed"))
    with pytest.raises(SpecError, match="all tasks are in vectors"):
        mtlkit.create_architecture("smp(vectors=[a])", ["a"])


def test_the_saved_preprocessing_reads_folders_tables_and_single_files():
    write_pictures(10)
    data = load("size=[16, 24], fit=crop")
    again = ImagePreprocessing.from_json(data.preprocessing.to_json())
    assert again.to_json() == data.preprocessing.to_json()
    rows = again.read("photos")
    assert list(rows["file"]) == sorted(f"{index}.png" for index in range(10))
    inputs = again.inputs(rows)
    places = {path.name: index for index, path in enumerate(data.test.paths)}
    for name, made in zip(rows["file"], inputs, strict=True):
        if name in places:
            assert torch.equal(made, data.test[places[name]][0])
    pandas.DataFrame({"name": ["photos/4.png", "photos/2.png"]}).to_csv("new.csv", index=False)
    assert torch.equal(again.inputs(again.read("new.csv"))[1], again.inputs(["photos/2.png"])[0])
    assert len(again.read("photos/4.png")) == 1
    pandas.DataFrame({"id": [1]}).to_csv("new.csv", index=False)
    with pytest.raises(DataError, match="no column 'name'"):
        again.read("new.csv")
    with pytest.raises(DataError, match="no file or folder"):
        again.read("elsewhere")
    with pytest.raises(DataError, match="not the preprocessing"):
        ImagePreprocessing.from_json("[]")


def test_names_with_leading_zeros_need_no_ending():
    frame = write_pictures(10)
    write_maps(10)
    for folder in ("photos", "masks"):
        for index in range(10):
            Path(f"{folder}/{index}.png").rename(f"{folder}/{index:04d}.png")
    frame["name"] = [f"{index:04d}" for index in range(10)]
    frame["mask"] = [f"masks/{index:04d}" for index in range(10)]
    frame.to_csv("labels.csv", index=False)
    data = load("size=16", "{road: segmentation(classes=3, column=mask), age: regression}")
    assert len(data.train) == 6
    frame[["name"]].to_csv("photos/new.csv", index=False)
    assert list(data.preprocessing.read("photos/new.csv")["file"])[7] == "0007"


def test_rows_name_images_as_the_training_table_did():
    frame = write_pictures(10)
    preprocessing = load("size=16").preprocessing
    frame.to_csv("photos/again.csv", index=False)
    rows = preprocessing.read("photos/again.csv")
    assert list(rows.columns) == ["file", "name", "breed", "age", "path"]
    expected = preprocessing.inputs(rows)
    named = pandas.DataFrame({"name": "photos/" + frame["name"]})
    for given in (named, named.rename(columns={"name": "file"}), named.rename(columns={"name": "path"})):
        assert torch.equal(preprocessing.inputs(given), expected)
    with pytest.raises(DataError, match=r"no column 'name', 'path' or 'file'.*given are: age"):
        preprocessing.inputs(frame[["age"]])
    # the table of training lies beside the folder, not in it
    with pytest.raises(DataError, match=r"10 of 10 images are not in the folder .*relative to it"):
        preprocessing.read("labels.csv")
    frame.loc[2, "name"] = None
    frame.to_csv("photos/again.csv", index=False)
    with pytest.raises(DataError, match="column 'name' must name the images, but 1 cells are empty"):
        preprocessing.read("photos/again.csv")


@pytest.mark.parametrize("shape", [SIZE, (1, *SIZE), (*SIZE, 1)])
def test_a_mask_may_have_one_channel_at_either_end(shape):
    write_pictures(10)
    Path("masks").mkdir()
    for index in range(10):
        np.save(f"masks/{index}.npy", np.ones(shape, dtype=np.uint8))
    targets = "{road: segmentation(classes=3, folder=masks)}"
    data = load_dataset(f"images(folder=photos, targets={targets}, size=16)")
    assert (data.train[0][1]["road"] == 1).all()


def run(*arguments: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    assert not stop.value.code


def test_training_on_the_command_line_resumes_bit_for_bit_and_predicts():
    write_pictures(14)
    data = f"images(folder=photos, labels=labels.csv, file=name, targets={TARGETS}, size=16, augment=crop+flip)"
    settings = ("--data", data, "--architecture", "hard_sharing(backbone=timm.test_resnet)")
    settings += ("--method", "pcgrad", "--batch-size", "4", "--monitor-steps", "0")
    run("train", *settings, "--epochs", "2", "-o", "whole")
    run("train", *settings, "--epochs", "1", "-o", "parts")
    run("train", *settings, "--epochs", "2", "-o", "parts", "--resume", "auto")
    assert Path("whole/test.json").read_text() == Path("parts/test.json").read_text()
    model = mtlkit.load("whole")
    assert model.preprocessing.sizing.size == (16, 16)
    run("predict", "whole", "--input", "photos", "--output", "out.csv")
    predicted = pandas.read_csv("out.csv")
    assert sorted(predicted["file"]) == sorted(f"{index}.png" for index in range(14))
    rows = model.preprocessing.read("photos")
    logits = model(model.preprocessing.inputs(rows))["breed"]
    assert list(predicted["breed"]) == ["abc"[index] for index in logits.argmax(dim=1)]
    paths = list(rows["path"])
    for given in (paths, [{"file": path} for path in paths], pandas.DataFrame({"name": paths})):
        assert list(model.predict(given)["breed"]) == list(predicted["breed"])
    pandas.DataFrame({"name": paths, "k": range(14)}).to_csv("new.csv", index=False)
    run("predict", "whole", "--input", "new.csv", "--output", "out.csv", "--keep", "k")
    assert list(pandas.read_csv("out.csv")["k"]) == list(range(14))


def test_heat_maps_are_targets_in_which_zero_is_a_number_and_what_is_outside_is_not_known():
    write_pictures(10)
    Path("heat").mkdir()
    for number in range(10):
        heat = np.full(SIZE, 255 * (number % 2), dtype=np.uint8)
        if number != 3:  # without a map
            Image.fromarray(heat).save(f"heat/{number}.png")
    data = load_dataset(
        "images(folder=photos, targets={heat: dense_regression(folder=heat)}, size=[32, 64], fit=pad)"
    )
    assert data.default_architecture.startswith("smp(")
    seen = 0
    for split in (data.train, data.val, data.test):
        for index, path in enumerate(split.paths):
            target = split[index][1]["heat"]
            assert target.shape == (1, 32, 64)
            known = target[~torch.isnan(target)]
            number = int(path.stem)
            if number == 3:
                assert len(known) == 0
                continue
            assert len(known) == 32 * 48  # the borders of the padding are not known
            assert (known == number % 2).all()
            seen += 1
    assert seen == 9
    loss, count = data.tasks[0].measure(torch.zeros_like(target)[None], target[None])
    assert count == 32 * 48
    assert float(loss) == number % 2
