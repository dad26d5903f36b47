-- Functions of Spark SQL that DuckDB lacks. With them DuckDB runs the definitions of this folder unchanged.
CREATE MACRO unix_millis(moment) AS epoch_ms(moment);
CREATE MACRO timestamp_millis(ms) AS make_timestamptz(ms * 1000);
CREATE MACRO collect_list(value) AS list(value) FILTER (WHERE value IS NOT NULL);
CREATE MACRO sort_array(list) AS list_sort(list);
CREATE MACRO size(list) AS len(list);
CREATE MACRO element_at(list, position) AS list[position];
CREATE MACRO sequence(low, high, step) AS range(low, high + 1, step);
CREATE MACRO explode(list) AS unnest(list);
