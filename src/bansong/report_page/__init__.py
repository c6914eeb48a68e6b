"""A run, or an enriched file, as one page to be read, printed and passed on, which asks nothing of any network.

- ``page_figures``: what the page counts, from the answered rows, with its charts as SVG; ``masking``: what it shows
  of people
- ``tags``: HTML whose every value is escaped
- ``page``: the page itself; ``open_run``: a run or a file that was written before
"""

from bansong.report_page.open_run import report_page
from bansong.report_page.page import write_page
from bansong.report_page.page_figures import PageFigures, collect_figures

__all__ = ["PageFigures", "collect_figures", "report_page", "write_page"]
