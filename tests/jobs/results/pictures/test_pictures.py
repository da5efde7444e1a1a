"""Content of the pictures, read from matplotlib's objects."""

import dataclasses
import itertools
import logging
import statistics

import pytest
from matplotlib.colors import to_hex, to_rgb

from cmkernel import cost, performance_model
from cmkernel.timeline import Interval, StepTimes
from jobs.config.implementations import IMPLEMENTATIONS
from jobs.results import pictures
from jobs.results.disk.recorded_run import read_run
from jobs.results.pictures import landscape, ranks, ring_timeline, selection, style, times, utilisation
from tests.jobs.run_rows import ARTICLE, H200, LLAMA3, article_rows, failed, not_run, with_time


@pytest.fixture(scope="module")
def llama3():
    return list(read_run(LLAMA3).rows)


def texts(figure):
    return [text.get_text().replace("\n", " ") for text in figure.texts]


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def axis_texts(ax):
    return [text.get_text() for text in ax.texts]


def tick_labels(ax):
    return [label.get_text() for label in ax.get_yticklabels()]


def line(ax, label):
    (found,) = [line for line in ax.get_lines() if line.get_label() == label]
    return found


def marked(ax, marker):
    (found,) = [line for line in ax.get_lines() if line.get_marker() == marker]
    return found


def shown_texts(figure):
    yield from figure.texts
    yield from (text for legend in figure.legends for text in legend.get_texts())
    for ax in figure.axes:
        # Ticks beyond the limits exist, unseen.
        (left, right), (low, high) = sorted(ax.get_xlim()), sorted(ax.get_ylim())
        yield from (tick.label1 for tick in ax.xaxis.get_major_ticks() if left <= tick.get_loc() <= right)
        yield from (tick.label1 for tick in ax.yaxis.get_major_ticks() if low <= tick.get_loc() <= high)
        yield from (*ax.texts, ax._left_title, ax.xaxis.label, ax.yaxis.label)


def inside(text, figure):
    if not text.get_text() or not text.get_visible():
        return True
    box, (width, height) = text.get_window_extent(), figure.get_size_inches() * figure.dpi
    return box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height


# Time against the bound


def test_a_bar_for_each_implementation_from_zero_to_its_headline_time(llama3):
    figure = times.figure(llama3, H200)
    assert len(figure.axes) == 10
    for ax, of_case in zip(figure.axes, [llama3[i : i + 3] for i in range(0, 30, 3)], strict=True):
        assert tick_labels(ax) == ["mosaic_gpu", "xla", "local"]
        assert [(bar.get_x(), bar.get_width()) for bar in ax.patches] == [(0, row.headline_us) for row in of_case]
        assert ax.get_title() == f"{of_case[0].case.name} m_shard={of_case[0].case.m_shard}"
        assert [text.split(",")[0] for text in axis_texts(ax)] == [
            f"{row.headline_us:.{0 if row.headline_us >= 1000 else 1}f} µs" for row in of_case
        ]
        assert [text.xy for text in ax.texts] == [(row.headline_us, place) for place, row in enumerate(of_case)]
    assert figure.axes[-1].get_xlabel() == figure.axes[-2].get_xlabel() == "time of a call (µs)"
    assert "NVIDIA H200, bfloat16, D=2, in_graph_us of the slowest rank" in texts(figure)


def test_the_lines_are_the_faster_local_and_the_articles_bound():
    rows = article_rows()
    local_us = rows[-1].headline_us
    rows.append(dataclasses.replace(with_time(rows[-1], 0.9 * local_us), implementation="local_cublas"))
    (ax,) = times.figure(rows, H200).axes
    lines = [line.get_xdata()[0] for line in ax.get_lines()]
    assert lines == pytest.approx([0.9 * local_us, 0.9 * local_us + 6])
    assert axis_texts(ax)[-1].endswith("1.00x local")


def test_without_a_local_there_is_no_bound():
    figure = times.figure(article_rows()[:-1], H200)
    (ax,) = figure.axes
    assert ax.get_lines() == []
    assert figure.legends == [], "of lines that aren't there"
    assert not any("local" in text for text in axis_texts(ax))


def test_failed_and_not_run_rows_are_named_in_the_place_of_their_bar():
    rows = article_rows()
    rows = [rows[0], failed(rows[1]), *rows[2:], not_run(rows[2], "no torch")]
    (ax,) = times.figure(rows, H200).axes
    assert tick_labels(ax) == ["mosaic_gpu", "mosaic_gpu_simple", "ppermute", "torch_fused", "xla", "local"]
    assert len(ax.patches) == 4
    words = {text.xy[1]: text.get_text() for text in ax.texts}
    assert (words[1], words[3]) == ("FAILED: 123 elements wrong", "not run")


def test_rows_without_a_time_have_no_picture_of_times_or_samples():
    rows = [failed(row) for row in article_rows()]
    assert times.figure(rows, H200) is None
    assert utilisation.figure(rows, H200) is None
    assert ranks.figure(rows, H200) is None


def test_of_several_configs_the_fastest_is_shown_and_said_to_be():
    row = article_rows()[0]
    rows = [with_time(row, 130.0, num_chunks=8), with_time(row, 110.0, num_chunks=16), failed(row)]
    figure = times.figure(rows, H200)
    assert [bar.get_width() for bar in figure.axes[0].patches] == [110.0]
    assert any("the fastest of up to 3 rows each" in text for text in texts(figure))


def test_more_cases_than_fit_are_left_out_and_said_to_be():
    row = article_rows()[0]
    rows = [dataclasses.replace(row, case=dataclasses.replace(row.case, m_shard=64 * i)) for i in range(1, 21)]
    for figure in (times.figure(rows, H200), ranks.figure(rows, H200)):
        assert any("the first 16 of 20 cases" in text for text in texts(figure))
    assert len(times.figure(rows, H200).axes) == 16


@pytest.mark.parametrize("kind", pictures.KINDS, ids=lambda kind: kind.name)
def test_nothing_reaches_beyond_the_picture(kind, llama3):
    row = article_rows()[0]
    tuned = [with_time(row, 100.0 + n, num_chunks=n, tile_n=64 * n) for n in range(1, 5)]
    tuned_alike = [with_time(row, 5887.0 + n / 20, num_chunks=n, tile_n=64 * n) for n in range(1, 5)]
    # The longest names there are, on eight ranks.
    long = [
        dataclasses.replace(
            row,
            case=dataclasses.replace(row.case, name="70b_gate_up_and_more", num_ranks=8, m_shard=m),
            implementation=name,
        )
        for m in (16384, 32768)
        for name in ("mosaic_gpu", "mosaic_gpu_simple", "ppermute_two_level", "local_cublas", "torch_fused", "xla")
    ]
    for rows in (article_rows(), llama3, tuned, tuned_alike, long):
        with pictures.style.house_style():
            figure = kind.figure(rows, H200)
            if figure is None:
                continue
            figure.draw_without_rendering()
            beyond = [text.get_text() for text in shown_texts(figure) if not inside(text, figure)]
        assert beyond == []


def test_a_long_name_does_not_push_the_legend_into_the_panels():
    rows = [dataclasses.replace(row, case=dataclasses.replace(row.case, name="long" * 50)) for row in article_rows()]
    with pictures.style.house_style():
        figure = utilisation.figure(rows, H200)
        figure.draw_without_rendering()
    (ax,) = figure.axes
    assert figure.legends[0].get_window_extent().y0 > ax._left_title.get_window_extent().y1


# Islands


@pytest.fixture
def islands():
    """Three of one case, and one more on which the check failed."""
    row = article_rows()[0]
    samples = {"in_graph_us": [[[100.0, 101.0, 99.0]], [[100.0, 100.0, 101.0]]]}
    rows = [with_time(row, us) for us in (120.0, 100.0, 110.0)]
    return [
        dataclasses.replace(
            row,
            island=f"rack{number}",
            case=dataclasses.replace(row.case, num_ranks=2),
            samples_us={
                "in_graph_us": [[[us * row.headline_us for us in burst] for burst in r] for r in samples["in_graph_us"]]
            },
            derived=dataclasses.replace(row.derived, utilisation=50 / row.headline_us),
        )
        for number, row in enumerate(rows)
    ]


def test_the_fastest_and_the_slowest_island_stand_beside_each_other(islands):
    figure = times.figure(islands, H200)
    (ax,) = figure.axes
    assert tick_labels(ax) == ["mosaic_gpu, fastest", "mosaic_gpu, slowest"]
    assert [bar.get_width() for bar in ax.patches] == [100.0, 120.0]
    assert axis_texts(ax) == ["100.0 µs, rack1", "120.0 µs, rack0"]
    assert any("the fastest and the slowest of 3 islands" in text for text in texts(figure))
    (ax,) = utilisation.figure(islands, H200).axes
    assert line(ax, "mosaic_gpu").get_ydata() == pytest.approx([50.0])
    assert line(ax, "mosaic_gpu, slowest island").get_ydata() == pytest.approx([100 * 50 / 120])


def test_an_island_whose_check_failed_is_the_slowest(islands):
    (ax,) = times.figure([*islands, dataclasses.replace(failed(islands[0]), island="rack3")], H200).axes
    assert axis_texts(ax) == ["100.0 µs, rack1", "FAILED: 123 elements wrong, rack3"]


def test_the_samples_of_a_slow_island_lie_beside_those_of_a_fast_one(islands):
    (ax,) = ranks.figure(islands, H200).axes
    assert tick_labels(ax) == [f"m_shard=1024 k=4096 n_shard=4096, {place} island" for place in ("fastest", "slowest")]
    fast, _, slow, _ = marked(ax, "|").get_xdata()
    assert 100 * ((100 + slow) / (100 + fast) - 1) == pytest.approx(20.0)


def test_timelines_of_the_fastest_and_the_slowest_island(islands):
    steps = [
        StepTimes(0, Interval(0.0, 40.0), None, 0.0),
        StepTimes(1, Interval(38.0, 80.0), Interval(1.5, 30.0), 2.0),
    ]
    timeline = [[dataclasses.asdict(step) for step in steps]] * 2
    axes = ring_timeline.figure([dataclasses.replace(row, timeline=timeline) for row in islands], H200).axes
    assert [ax.get_title().split(";")[0].split(", ")[1] for ax in axes] == [
        "fastest island rack1",
        "slowest island rack0",
    ]


# Looks


def lightness(colour):
    """CIE L* of a colour: 0 is black, 100 white."""
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in to_rgb(colour)]
    return 116 * sum(w * value for w, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True)) ** (1 / 3) - 16


def test_every_implementation_has_a_colour_and_a_marker_of_its_own():
    looks = [style.look(name) for name in IMPLEMENTATIONS]
    assert len({look.colour for look in looks}) == len({look.marker for look in looks}) == len(set(IMPLEMENTATIONS))
    # In black and white the three that nearly every picture shows must differ.
    shades = sorted(lightness(style.look(name).colour) for name in ("mosaic_gpu", "xla", "local"))
    assert min(b - a for a, b in itertools.pairwise(shades)) > 8


def test_no_bar_has_a_hatch(llama3):
    with style.house_style():
        figures = [kind.figure(rows, H200) for kind in pictures.KINDS for rows in (llama3, article_rows())]
    assert not any(patch.get_hatch() for figure in figures if figure for ax in figure.axes for patch in ax.patches)


# Utilisation


def test_a_point_for_each_row_in_a_panel_for_each_weight(llama3):
    figure = utilisation.figure(llama3, H200)
    assert [ax.get_title() for ax in figure.axes] == ["8b_qkv", "8b_gate_up", "70b_qkv", "70b_gate_up"]
    for ax in figure.axes:
        for name in ("mosaic_gpu", "xla", "local"):
            rows = [row for row in llama3 if row.implementation == name and row.case.name == ax.get_title()]
            points = line(ax, name)
            assert list(points.get_xdata()) == [row.case.m_shard for row in rows]
            assert list(points.get_ydata()) == pytest.approx([100 * row.derived.utilisation for row in rows])
    assert legend(figure) == ["mosaic_gpu", "xla", "local", "MODELLED: roofline of the ring", "MODELLED: mosaic_gpu"]


def test_the_cost_models_line_passes_through_the_model_of_the_measured_case():
    (ax,) = utilisation.figure(article_rows(), H200).axes
    sizes = {"m_shard": 1024, "k": 4096, "n_shard": 4096, "num_ranks": 2}
    config = performance_model.heuristic_config(**sizes, num_sms=132)
    time_us = performance_model.modelled_calls_us(config, **sizes, num_sms=132)["mosaic_gpu"]
    modelled = dict(zip(*line(ax, "MODELLED: mosaic_gpu").get_data(), strict=True))
    assert modelled[1024] == pytest.approx(100 * cost.flops(**sizes) / time_us * 1e-6 / 989.4)
    assert min(modelled) == 256
    assert max(modelled) >= 4096


def test_devices_without_a_peak_have_flops_and_no_model():
    rows = [
        dataclasses.replace(row, derived=dataclasses.replace(row.derived, utilisation=None)) for row in article_rows()
    ]
    figure = utilisation.figure(rows, "cpu")
    (ax,) = figure.axes
    assert ax.get_ylabel() == "TFLOP/s of a rank"
    assert list(line(ax, "local").get_ydata()) == [rows[-1].derived.tflops_per_gpu]
    assert not any("MODELLED" in label for label in legend(figure))


def test_other_gpus_have_the_roofline_alone():
    figure = utilisation.figure(article_rows(), "NVIDIA H100 80GB HBM3")
    assert [label for label in legend(figure) if "MODELLED" in label] == ["MODELLED: roofline of the ring"]


# Samples of each rank


def test_every_sample_and_every_ranks_median(llama3):
    figure = ranks.figure(llama3, H200)
    assert [ax.get_title() for ax in figure.axes] == ["mosaic_gpu", "xla", "local"]
    ax = figure.axes[0]
    within, below, above, medians = marked(ax, "o"), marked(ax, "<"), marked(ax, ">"), marked(ax, "|")
    rows = [row for row in llama3 if row.implementation == "mosaic_gpu"]
    num_samples = sum(len(rank) for row in rows for rank in selection.samples_us(row))
    assert sum(len(points.get_xdata()) for points in (within, below, above)) == num_samples == 240
    first = selection.samples_us(rows[0])
    centre = statistics.median(value for rank in first for value in rank)
    expected = [100 * (statistics.median(rank) / centre - 1) for rank in first]
    assert list(medians.get_xdata())[:2] == pytest.approx(expected)
    assert list(medians.get_ydata())[:4] == [0, 1, 3, 4], "a free line between two cases"
    assert tick_labels(ax)[0] == "8b_qkv m_shard=256"


def test_a_late_rank_is_seen():
    row = article_rows()[0]
    samples = {"in_graph_us": [[[100.0, 101.0, 99.0]], [[100.0, 100.0, 101.0]], [[150.0, 151.0, 149.0]]]}
    row = dataclasses.replace(row, case=dataclasses.replace(row.case, num_ranks=3), samples_us=samples)
    (ax,) = ranks.figure([row], H200).axes
    assert list(marked(ax, "|").get_xdata()) == pytest.approx([-0.990, -0.990, 48.515], abs=1e-3)


# The tuning landscape


def test_a_panel_for_each_option_that_varies_and_the_fastest_of_each_value():
    row = article_rows()[0]
    measured = {(8, 128): 120.0, (8, 256): 100.0, (16, 128): 110.0, (16, 256): 105.0}
    rows = [with_time(row, us, num_chunks=chunks, tile_n=tile_n) for (chunks, tile_n), us in measured.items()]
    figure = landscape.figure(rows, H200)
    assert [ax.get_xlabel() for ax in figure.axes] == ["tile_n", "num_chunks"]
    assert "4 configs" in figure.axes[0]._left_title.get_text() + figure.axes[0].get_title()
    for ax, values, best in (
        (figure.axes[0], ["128", "256"], [110.0, 100.0]),
        (figure.axes[1], ["8", "16"], [100.0, 105.0]),
    ):
        assert [label.get_text() for label in ax.get_xticklabels()] == values
        points = [line for line in ax.get_lines() if line.get_markersize() == 4]
        assert sorted(line.get_ydata()[0] for line in points) == sorted(measured.values())
        (joined,) = [line for line in ax.get_lines() if len(line.get_xdata()) == 2]
        assert list(joined.get_ydata()) == best
        (fastest,) = [line for line in ax.get_lines() if line.get_markersize() == 7]
        assert fastest.get_ydata()[0] == 100.0


def test_each_case_has_panels_side_by_side_of_the_options_that_vary_in_it():
    row = article_rows()[0]
    other = dataclasses.replace(row, case=dataclasses.replace(row.case, m_shard=64))
    rows = [with_time(row, 100.0 + n, tile_m=64 * n, tile_n=64 * n) for n in (1, 2, 3)]
    rows += [with_time(other, 200.0 + n, num_chunks=n, tile_k=n, wait_ahead=n > 1) for n in (1, 2, 3)]
    axes = landscape.figure(rows, H200).axes
    assert [ax.get_xlabel() for ax in axes] == ["tile_m", "tile_n", "tile_k", "num_chunks", "wait_ahead"]
    assert [ax.get_ylabel() for ax in axes] == ["time (µs)", "", "time (µs)", "", ""]
    assert [bool(ax.get_title(loc="left") or ax.get_title()) for ax in axes] == [True, False, True, False, False]
    assert axes[0].get_position().x0 == axes[2].get_position().x0


def test_times_that_hardly_differ_are_written_out():
    row = article_rows()[0]
    figure = landscape.figure([with_time(row, 58870.0 + n / 20, num_chunks=n) for n in (1, 2, 3)], H200)
    figure.canvas.draw()
    assert figure.axes[0].yaxis.get_offset_text().get_text() == ""
    assert all(label.get_text().startswith("58870") for label in figure.axes[0].get_yticklabels())


def test_too_few_configs_are_no_landscape(llama3):
    row = article_rows()[0]
    assert landscape.figure(llama3, H200) is None
    assert landscape.figure([with_time(row, 100.0, num_chunks=4), with_time(row, 90.0, num_chunks=8)], H200) is None


# The timeline


def arrivals(ax):
    return [bar for bar in ax.patches if to_hex(bar.get_facecolor()) == ring_timeline._ARRIVAL]


def test_every_rank_multiplies_every_shard_and_receives_all_but_its_own():
    row = article_rows()[0]
    row = dataclasses.replace(row, case=dataclasses.replace(row.case, num_ranks=4))
    figure = ring_timeline.figure([row], H200)
    (ax,) = figure.axes
    assert len(ax.patches) == 4 * (4 + 3)
    assert len(arrivals(ax)) == 4 * 3
    shards = [text.get_text() for text in ax.texts]
    assert shards[:7] == [f"shard {shard}" for shard in (0, 1, 1, 2, 2, 3, 3)]
    assert texts(figure)[0] == "One revolution of the ring: MODELLED"
    assert "not measured" in texts(figure)[1]
    assert "measured config" in ax.get_title(), "options that were removed since don't matter"


def test_measured_timelines_are_drawn_alone():
    modelled, row = article_rows()[:2]

    def steps(lag_us):
        return (
            StepTimes(0, Interval(0.0, 40.0 + lag_us), None, 0.0),
            StepTimes(1, Interval(38.0, 80.0 + lag_us), Interval(1.5, 30.0 + lag_us), 2.0),
        )

    case = dataclasses.replace(row.case, m_shard=2048)
    timeline = [[dataclasses.asdict(step) for step in steps(lag_us)] for lag_us in (0.0, 5.0)]
    row = dataclasses.replace(row, case=case, implementation="mosaic_gpu", timeline=timeline)
    figure = ring_timeline.figure([modelled, row], H200)
    (ax,) = figure.axes
    assert texts(figure)[0] == "One revolution of the ring: measured"
    assert H200 in texts(figure)[1]
    assert "waits for pieces: 2.0 µs of a loading warp" in ax.get_title()
    assert [bar.get_x() + bar.get_width() for bar in arrivals(ax)] == [30.0, 35.0]
    multiplies = [bar for bar in ax.patches if bar not in arrivals(ax)]
    assert [bar.get_x() + bar.get_width() for bar in multiplies] == [40.0, 80.0, 45.0, 85.0]


def test_the_heuristics_config_stands_in_where_the_kernel_did_not_run():
    (row,) = [row for row in article_rows() if row.implementation == "ppermute"]
    (ax,) = ring_timeline.figure([row], "cpu").axes
    assert "the heuristic's config" in ax.get_title()


def test_one_rank_and_float32_have_no_timeline():
    row = article_rows()[0]
    for change in ({"num_ranks": 1}, {"dtype": "float32"}):
        assert (
            ring_timeline.figure([dataclasses.replace(row, case=dataclasses.replace(row.case, **change))], H200) is None
        )


# Files


def test_files_are_named_by_content_and_the_same_for_the_same_rows(tmp_path):
    rows = list(read_run(ARTICLE).rows)
    first, second = (pictures.draw(rows, H200, tmp_path / name) for name in ("a", "b"))
    assert first.failures == {}
    names = ["time_against_bound", "utilisation", "ranks", "ring_timeline"]
    assert [picture.name for picture in first.pictures] == names
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == sorted(
        f"{name}.{kind}" for name in names for kind in ("png", "svg")
    )
    for one, other in zip(first.pictures, second.pictures, strict=True):
        assert one.png.read_bytes().startswith(b"\x89PNG")
        assert one.svg.read_bytes() == other.svg.read_bytes()


def test_names_are_no_markup(tmp_path):
    row = article_rows()[0]
    row = dataclasses.replace(row, case=dataclasses.replace(row.case, name='<b>$x_{$ & "q"'))
    drawn = pictures.draw([row], H200, tmp_path)
    assert drawn.failures == {}
    assert not any(b"<b>" in picture.svg.read_bytes() for picture in drawn.pictures)


def test_a_picture_that_fails_is_logged_and_the_others_are_drawn(tmp_path, caplog):
    # A file of the journal may hold what no version of the job wrote.
    rows = [dataclasses.replace(row, samples_us={"in_graph_us": [[["slow"]], [[1.0]]]}) for row in article_rows()]
    with caplog.at_level(logging.ERROR):
        drawn = pictures.draw(rows, H200, tmp_path)
    assert list(drawn.failures) == ["ranks"]
    assert [picture.name for picture in drawn.pictures] == ["time_against_bound", "utilisation", "ring_timeline"]
    assert "the picture ranks can't be drawn" in caplog.text
    assert "Traceback" in caplog.text


def test_no_rows_are_no_pictures(tmp_path):
    drawn = pictures.draw([], None, tmp_path)
    assert (drawn.pictures, drawn.failures) == ((), {})


# Labels


def test_labels_have_what_tells_cases_apart():
    case = article_rows()[0].case
    other = dataclasses.replace(case, m_shard=64)
    assert selection.case_labels([case, other]) == {case: "m_shard=1024", other: "m_shard=64"}
    assert selection.case_labels([case]) == {case: "m_shard=1024 k=4096 n_shard=4096"}
    named = dataclasses.replace(case, name="wide", n_shard=8192)
    assert selection.case_labels([case, named]) == {case: "article", named: "wide"}
    assert selection.case_labels([case, other], without="m_shard") == {
        case: "k=4096 n_shard=4096",
        other: "k=4096 n_shard=4096",
    }
