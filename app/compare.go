package app

import (
	"context"
	"fmt"

	"github.com/weir-social/weir/internal/ops/compare"
)

// Compared returns the tables to compare.
func (p App) Compared() []compare.Table {
	return compare.Tables(p.parts.Compared, p.parts.Uncompared...)
}

// Compare compares the process's database with the one at a URL.
func (p App) Compare(ctx context.Context, with string, report func(compare.Difference)) ([]compare.Result, error) {
	other, err := p.cfg.OpenPool(ctx, with, 1)
	if err != nil {
		return nil, fmt.Errorf("open the database to compare with: %w", err)
	}
	defer other.Close()
	return compare.Databases(ctx, p.pool, other, p.Compared(), report)
}
