"""From result files and traces to what a person looks at: pages, pictures, tables, the terminal. Free of torch."""
