"""A run, or an enriched file, as one HTML page to read, print and pass on; it loads nothing from any network."""

from bansong.report_page.open_run import report_page
from bansong.report_page.page import write_page
from bansong.report_page.page_figures import PageFigures, collect_figures

__all__ = ["PageFigures", "collect_figures", "report_page", "write_page"]
