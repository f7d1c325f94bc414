"""Numbers and dates as people write them."""

import datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_nrbfn.errors import ParameterError
from dask_nrbfn.sources.written import (
    DateFormat,
    NumberForm,
    date_reading,
    is_told,
    number_reading,
)


def counted(texts):
    return dict.fromkeys(texts, 1)


@pytest.mark.parametrize(
    ("written", "values"),
    [
        ("$1,234.5", {"$1,234.50": 1234.5, "$7": 7, "-$5": -5, "$-5": -5, "$ 1234": 1234}),
        ("1234.5 kg", {"12 kg": 12, "3.25kg": 3.25, "+1 kg": 1, ".5 kg": 0.5}),
        ("1234.5 m2", {"12 m2": 12, "3.25m2": 3.25, "-1 m2": -1}),
        ("1 234,5 €", {"1 234,50 €": 1234.5, "1\u00a0234 €": 1234, "0,5 €": 0.5}),
        ("1.234,5", {"1.234.567": 1_234_567, "12": 12, "1,5": 1.5}),
        ("1'234.5%", {"1'234.5%": 1234.5, "99 %": 99}),
    ],
)
def test_number__is_read_as_it_is_written(written, values):
    form = NumberForm.of(written)
    assert str(form) == written
    np.testing.assert_array_equal(form.read(pa.array(values, pa.string())), [*values.values()])


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("$1,234.5", "999"),
        ("$1,234.5", "€5"),
        ("1234.5 kg", "300 g"),
        ("1.234,5", "1,234.5"),
        ("1234.5%", None),
    ],
)
def test_number__of_another_unit_is_none(written, text):
    assert np.isnan(NumberForm.of(written).read(pa.array([text], pa.string()))).all()


@pytest.mark.parametrize(
    ("texts", "decimal", "written"),
    [
        (["1,234", "12"], ".", "1,234.5"),
        (["-$1,234.00", "$5.10"], ".", "$1,234.5"),
        (["US$ 3", "US$ 4.50"], ".", "US$ 1234.5"),
        (["12 kg", "3.5 kg"], ".", "1234.5 kg"),
        (["12.3%", "5%"], ".", "1234.5%"),
        (["-3 °C", "21.5 °C"], ".", "1234.5 °C"),
        (["1 234", "12"], ".", "1 234.5"),
        (["1.234,50", "234,5"], ",", "1.234,5"),
        (["1,5 kg", "2 kg"], ",", "1234,5 kg"),
        (["1,234.5", "12"], "", "1,234.5"),
    ],
)
def test_reading__of_numbers(texts, decimal, written):
    reading, units = number_reading(counted(texts), decimal)
    assert (reading.written, reading.n_read, units) == ((written,), len(texts), ())
    assert np.isfinite(NumberForm.of(written).read(pa.array(texts))).all()


@pytest.mark.parametrize(
    "texts",
    [
        ["12A", "13B"],
        ["01234", "00501"],
        ["1-2", "3-4"],
        ["612 345 678", "612 999 111"],
        ["5'11\"", "6'02\""],
        ["1/2", "3/4"],
        ["1st", "2nd"],
        ["<5", ">10"],
        ["1.2.3", "4.5.6"],
        ["1,23", "4,567"],
        ["007 kg", "008 kg"],
        ["12, Main St", "13, Main St"],
    ],
)
def test_reading__of_codes_is_none(texts):
    reading, units = number_reading(counted(texts), ".")
    assert (reading.written[0] == "" or reading.n_read < 0.99 * len(texts), units) == (True, ())


def test_reading__of_several_units_names_them():
    reading, units = number_reading({"12 kg": 3, "300 g": 2, "5 kg": 1}, ".")
    assert (reading.n_read, units) == (4, ("12 kg", "300 g"))
    many = counted([f"{i} {street}" for i, street in enumerate("abcdefghij")])
    assert number_reading(many, ".")[1] == ()


def test_reading__of_thousands_that_may_be_decimals_is_none():
    assert number_reading(counted(["1,234", "12,345"]), "")[0].written == ("",)


FORMATS = ["%d.%m.%Y", "%m/%d/%Y", "%Y/%m/%d", "%Y%m%d", "%B %d, %Y", "%d %b %Y", "%d-%b-%y"]


@pytest.mark.fast_cases(12)
@pytest.mark.parametrize("clock", ["", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p"])
@pytest.mark.parametrize("day", [*FORMATS, "%A, %d %B %Y", "%a %d.%m.%y", "%Y-%m-%dT"])
@settings(max_examples=15)
@given(seconds=st.integers(0, 4_000_000_000))
def test_date__is_that_of_strptime(day, clock, seconds):
    moment = datetime.datetime(1970, 1, 2) + datetime.timedelta(seconds=seconds)
    if "%y" in day:
        moment = moment.replace(year=1970 + moment.year % 90)
    if moment.year >= 2069 and "%y" in day:
        return
    text = moment.strftime(day + clock)
    expected = datetime.datetime.strptime(text, day + clock) - datetime.datetime(1970, 1, 1)
    (found,) = DateFormat.of(day + clock).read(pa.array([text]))
    assert found == pytest.approx(expected / datetime.timedelta(days=1), abs=1e-9)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("%d.%m.%Y", "31.02.2020"),
        ("%d.%m.%Y", "01.13.2020"),
        ("%d.%m.%Y", "01.01.20"),
        ("%d.%m.%Y", "01.01.2020 12:00"),
        ("%m/%d/%Y %I:%M %p", "1/1/2020 13:00 PM"),
        ("%B %d, %Y", "Decembre 1, 2020"),
        ("%Y%m%d", "2020131"),
        ("%d.%m.%Y", None),
    ],
)
def test_date__that_there_is_not_is_none(written, text):
    assert np.isnan(DateFormat.of(written).read(pa.array([text], pa.string()))).all()


@pytest.mark.parametrize("text", ["", "%q", "%d.%m", "%Y-%j", "%d.%m.%Y %I:%M", "%d%d%m%Y", "%"])
def test_date__format_that_is_none(text):
    with pytest.raises(ParameterError, match="Give year, month and day, such as %d/%m/%Y"):
        DateFormat.of(text)


@pytest.mark.parametrize(
    ("texts", "written", "told"),
    [
        (["31.12.2020", "1.2.2019"], ("%d.%m.%Y",), True),
        (["12/31/2020", "01/02/2020"], ("%m/%d/%Y",), True),
        (["01/02/2020", "03/04/2020"], ("%d/%m/%Y", "%m/%d/%Y"), False),
        (["20201231", "20200101"], ("%Y%m%d",), False),
        (["December 31, 2020", "May 1, 2019"], ("%B %d, %Y",), True),
        (["31 Dec 2020", "1 Jan 1999"], ("%d %B %Y",), True),
        (["31.12.20", "01.02.99"], ("%d.%m.%y",), True),
        (["1.12.20", "3.2.10"], ("%d.%m.%y",), False),
        (["12/31/2020 11:59 PM"], ("%m/%d/%Y %I:%M %p",), True),
        (["red", "green 2020"], (), False),
        ([], (), False),
    ],
)
def test_reading__of_dates(texts, written, told):
    reading = date_reading(counted(texts))
    assert (reading.written, is_told(reading, texts)) == (written, told)
