"""Each task with its own data: shares, schedules, tables that are encoded together, errors."""

import csv
from collections import Counter
from pathlib import Path
from random import Random

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

import mtlkit
from mtlkit.data import TensorSplit, mix
from mtlkit.data.mixing import InTurn, MixedBatches, mixing_shares
from mtlkit.data.mixture import Mixture
from mtlkit.errors import MtlkitError, SpecError, UsageError


def schedule(sizes=(60, 15), batch=5, mixing="proportional", batches="all", seed=0) -> MixedBatches:
    samplers = {f"s{k}": RandomSampler(range(size)) for k, size in enumerate(sizes)}
    return MixedBatches(samplers, batch, mixing=mixing, batches=batches, seed=seed)


def epochs(batches: MixedBatches, count: int) -> list:
    drawn = []
    for epoch in range(count):
        batches.set_epoch(epoch)
        drawn += list(batches)
    return drawn


@pytest.mark.parametrize(
    ("mixing", "expected"),
    [
        ("uniform", (0.5, 0.5)),
        ("proportional", (0.9, 0.1)),
        ("temperature(2)", (0.75, 0.25)),
        ("temperature(1)", (0.9, 0.1)),
        ("temperature(inf)", (0.5, 0.5)),
    ],
)
def test_shares_are_those_of_the_mixing(mixing, expected):
    assert mixing_shares(mixing, [900, 100]) == pytest.approx(expected)


@pytest.mark.parametrize("mixing", ["temprature(2)", "temperature", "temperature(0.5)", "uniform(2)"])
def test_another_mixing_is_refused_by_name(mixing):
    with pytest.raises(SpecError, match="mixing"):
        mixing_shares(mixing, [1, 1])


@pytest.mark.parametrize("batches", ["one", "all"])
def test_a_proportional_epoch_passes_once_over_every_source(batches):
    drawn = epochs(schedule(batches=batches), 1)
    assert len(drawn) == 15
    assert {len(batch) for batch in drawn} == {5}
    counts = Counter(draw for batch in drawn for draw in batch)
    assert len(counts) == 75
    assert set(counts.values()) == {1}


@pytest.mark.parametrize("batches", ["one", "all"])
def test_every_source_is_read_pass_after_pass_in_new_orders(batches):
    drawn = epochs(schedule(mixing="uniform", batches=batches, batch=6), 4)
    for source, size in enumerate((60, 15)):
        stream = [draw for batch in drawn for draw in batch if draw.source == source]
        passes = [stream[i : i + size] for i in range(0, len(stream) - size + 1, size)]
        orders = [[draw.sample for draw in one] for one in passes]
        assert len(orders) >= 2
        assert all(sorted(order) == list(range(size)) for order in orders)
        assert len(set(map(tuple, orders))) == len(orders)
        assert [one[0].turn for one in passes] == list(range(len(passes)))


def test_batches_of_all_hold_the_shares_and_are_spread_over_the_batch():
    batches = epochs(schedule(mixing="temperature(2)", batch=12), 1)
    sources = [draw.source for draw in batches[0]]
    assert Counter(sources) == {0: 8, 1: 4}
    assert Counter(sources[:6]) == Counter(sources[6:])


def test_batches_of_one_draw_sources_as_often_as_their_share_says_and_in_random_order():
    batches = epochs(schedule(mixing="temperature(2)", batches="one"), 2)
    order = [batch[0].source for batch in batches]
    assert all(len({draw.source for draw in batch}) == 1 for batch in batches)
    assert Counter(order[:15]) == Counter(order[15:]) == {0: 10, 1: 5}
    assert order[:15] != order[15:]
    assert order != [b[0].source for b in epochs(schedule(batches="one", seed=1), 2)]


def test_even_the_smallest_source_has_a_place_in_every_batch_and_every_epoch():
    drawn = epochs(schedule((1000, 1, 3), batch=4), 1)
    assert all({draw.source for draw in batch} == {0, 1, 2} for batch in drawn)
    assert {batch[0].source for batch in epochs(schedule((1000, 1, 3), batches="one"), 1)} == {0, 1, 2}
    with pytest.raises(SpecError, match="larger batch"):
        schedule((10, 10, 10), batch=2)


def test_a_source_is_read_in_the_same_order_alone_and_among_others():
    both = [draw.sample for batch in schedule((30, 12)) for draw in batch if draw.source == 1]
    alone = MixedBatches(
        {"s1": RandomSampler(range(12))}, 5, mixing="proportional", batches="all", seed=0
    )
    order = [draw.sample for batch in alone for draw in batch]
    assert len(both) >= 8
    assert both[:8] == order[:8]


def test_evaluation_reads_every_sample_once():
    batches = InTurn([SequentialSampler(range(7)), SequentialSampler(range(3))], [4, 4])
    drawn = [[(draw.source, draw.sample) for draw in batch] for batch in batches]
    assert drawn == [
        [(0, i) for i in range(4)],
        [(0, i) for i in range(4, 7)],
        [(1, i) for i in range(3)],
    ]
    assert len(batches) == 3


def test_a_short_source_is_augmented_anew_in_every_pass():
    def shift(inputs, targets, uniform):
        return inputs + torch.from_numpy(uniform).float(), targets

    def source(size):
        zeros = torch.zeros(size, 1)
        return TensorSplit(zeros, {"t": zeros}, augment=shift, draws=1)

    mixture = Mixture({"long": source(12), "short": source(2)})
    first, second = (mixture.__getitems__([draw]) for draw in _draws_of_sample(1, 0, turns=2))
    assert not torch.equal(first.inputs, second.inputs)
    again = mixture.__getitems__(_draws_of_sample(1, 0, turns=2)[1:])
    assert torch.equal(second.inputs, again.inputs)


def _draws_of_sample(source, index, turns):
    from mtlkit.data.mixing import Draw

    return [Draw(source, index, turn) for turn in range(turns)]


def test_targets_of_other_sources_are_missing_labels():
    mixture = Mixture(
        {
            "a": TensorSplit(torch.zeros(3, 2), {"class": torch.tensor([0, 1, 2], dtype=torch.uint8)}),
            "b": [(torch.ones(2), 0.5), (torch.ones(2), 1.5)],
        }
    )
    batch = mixture.__getitems__([0, 3, 4])
    assert batch.targets["class"].tolist() == [0, -100, -100]
    assert torch.isnan(batch.targets["b"][0])
    assert batch.targets["b"][1:].tolist() == [0.5, 1.5]
    assert batch.inputs.tolist() == [[0, 0], [1, 1], [1, 1]]
    assert mixture[4][1] == {"b": 1.5}
    assert mixture[-1][1] == {"b": 1.5}
    with pytest.raises(IndexError):
        mixture[5]


class Endless(IterableDataset):
    def __iter__(self):
        yield torch.zeros(2), 0


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        ([1, 2], "DataLoader"),
        (DataLoader(Endless()), "no length"),
        (DataLoader([1, 2], batch_sampler=[[0], [1]]), "batch sampler"),
    ],
)
def test_loaders_that_cannot_be_mixed_are_refused_with_the_reason(loader, reason):
    with pytest.raises(SpecError, match=reason):
        mix({"a": DataLoader([1, 2]), "b": loader})


def test_inputs_of_different_shapes_share_no_batch():
    def loaders():
        return {
            name: DataLoader([(torch.zeros(size), 0.0)] * 4, batch_size=2)
            for name, size in (("a", 3), ("b", 5))
        }

    with pytest.raises(UsageError, match=r"a \(3,\), b \(5,\).*batches=one"):
        next(iter(mix(loaders())))
    shapes = {tuple(inputs.shape) for inputs, _ in mix(loaders(), batches="one")}
    assert shapes == {(2, 3), (2, 5)}


@pytest.fixture
def files(tmp_path) -> Path:
    """Two tables; each has a column that the other lacks, and b has to predict an input of a."""
    random = Random(0)
    for name, rows, own in (("a", 80, "job"), ("b", 30, "city")):
        with open(tmp_path / f"{name}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["age", "sex", own, "height", "label"])
            for _ in range(rows):
                row = [random.randint(20, 60), random.choice("mf"), random.choice("xy")]
                writer.writerow([*row, random.randint(150, 200), random.randint(0, 1)])
    return tmp_path


def sources(files: Path, **options) -> mtlkit.data.DataSet:
    of = {
        "rich": f"table(file='{files / 'a.csv'}', targets={{label: binary}})",
        "tall": f"table(file='{files / 'b.csv'}', targets={{height: regression}}, ignore=[label])",
    }
    return mtlkit.load_dataset("sources", of=of, **options)


def test_tables_are_encoded_together_and_a_target_is_nowhere_an_input_of_its_own_rows(files):
    data = sources(files)
    assert data.task_names == ("rich", "tall")
    assert data.preprocessing.columns == ["age", "height", "sex", "job", "city"]
    assert [target.task for target in data.preprocessing.targets] == ["rich", "tall"]
    inputs, targets = next(iter(data.loader("train", 32, shuffle=True)))
    tall = ~torch.isnan(targets["tall"]).flatten()
    assert torch.equal(tall, torch.isnan(targets["rich"]).flatten())
    # age, height, whether height is missing, then sex, job and city; index 1 is a missing word
    assert torch.equal(inputs[:, 2].bool(), tall)
    assert not inputs[tall, 1].any()
    assert torch.equal(inputs[:, 4] == 1, tall)
    assert torch.equal(inputs[:, 5] == 1, ~tall)
    ages = torch.cat([data.sources[name].train.inputs[:, 0] for name in ("rich", "tall")])
    assert abs(float(ages.mean())) < 1e-5
    again = type(data.preprocessing).from_json(data.preprocessing.to_json())
    rows = again.read(files / "b.csv").head(3)  # it lacks the column job
    assert again.inputs(rows.drop(columns="height"))[:, 2].tolist() == [1, 1, 1]
    with pytest.raises(MtlkitError, match="lacks: 'age'"):
        again.inputs(rows.drop(columns="age"))


def test_a_column_of_numbers_here_and_words_there_is_refused(files):
    text = (files / "b.csv").read_text().replace("age,sex", "sex,age")
    (files / "b.csv").write_text(text)
    with pytest.raises(MtlkitError, match=r"numbers in one source and words in another.*a\.csv, b\.csv"):
        sources(files)


def test_the_data_of_one_task_is_its_source(files):
    data = sources(files, batches="one")
    tall = data.only(["tall"])
    assert tall.task_names == ("tall",)
    assert len(tall.train) == len(data.sources["tall"].train)
    assert all(set(targets) == {"tall"} for _, targets in tall.loader("train", 4))
    assert data.task_names == ("rich", "tall")


def test_a_config_string_describes_the_same_data(files):
    data = sources(files, mixing="temperature(2)")
    again = mtlkit.load_dataset(data.spec)
    assert again.spec == data.spec
    for one, two in zip(data.loader("train", 8), again.loader("train", 8), strict=True):
        assert torch.equal(one[0], two[0])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"of": {}}, "at least one source"),
        ({"of": {"a": "multidigits"}, "mixing": "often"}, "mixing"),
        ({"of": {"a": "multidigits"}, "batches": "some"}, "'one', 'all'"),
        ({"of": {"a": "multidigits", "b": "multidigits"}}, "need different names"),
        ({"of": {"a": "multidigits", "b": "cifar10"}}, "same shape.*batches=one"),
    ],
)
def test_sources_that_do_not_fit_are_refused_with_what_to_do(options, reason):
    with pytest.raises(SpecError, match=reason):
        mtlkit.load_dataset("sources", **options)


def test_a_comparison_trains_single_tasks_on_their_sources_and_all_methods_on_the_same_batches(files):
    from mtlkit.experiments.compare import run_comparison as compare
    from mtlkit.experiments.compare_config import CompareConfig

    of = {
        "rich": f"table(file='{files / 'a.csv'}', targets={{label: binary}})",
        "tall": f"table(file='{files / 'b.csv'}', targets={{height: regression}}, ignore=[label])",
    }
    settings = {
        "sources": of,
        "mixing": "temperature(2)",
        "methods": ["sum", "pcgrad(wrt=parameters)"],
        "seeds": 1,
        "epochs": 1,
        "batch_size": 8,
        "timing": 0,
        "jobs": 1,
        "device": "cpu",
    }
    found = compare(CompareConfig.make(settings), files / "out")
    assert [(run.label, run.status) for run in found.runs] == [
        ("single-task", "done"),
        ("sum", "done"),
        ("pcgrad(wrt=parameters)", "done"),
    ]
    assert all(set(run.metrics) == {"rich", "tall"} for run in found.runs)
